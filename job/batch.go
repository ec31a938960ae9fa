package job

import (
	"context"
	"errors"

	"github.com/sekali/sekali/idempotency"
)

// Item is one submission of a batch.
type Item struct {
	Request idempotency.Request
	Draft   Draft
	// Refusal is why there is no draft; its key is looked up all the same
	// (contract row 70).
	Refusal error
}

// SubmitAll is Submit for many: one accept for all, and for each item what
// Submit would have given it. Either the receipt or the error of an index
// counts. The first item of a key is the one that is accepted; later ones are
// its duplicates. An item that is refused is compared with what its key stood
// for before the batch.
func (s *Jobs) SubmitAll(ctx context.Context, items []Item) ([]Receipt, []error) {
	b := &batch{jobs: s, items: items, receipts: make([]Receipt, len(items)), errs: make([]error, len(items))}
	b.refuse(ctx, b.drafts())
	b.accept(ctx, b.admit(ctx, b.firsts()))
	b.repeat(ctx)
	return b.receipts, b.errs
}

// batch is the work of one SubmitAll.
type batch struct {
	jobs     *Jobs
	items    []Item
	drafted  []int           // items with a draft that can be accepted
	first    map[int]int     // of a repeated item: the first one of its key
	full     map[int]error   // items that the tenant's quota had no room for
	found    map[int]Receipt // what keys stand for that were accepted now or before
	receipts []Receipt
	errs     []error
}

// drafts sets aside what can be accepted and returns the others with the reason
// why not.
func (b *batch) drafts() map[int]error {
	refused := map[int]error{}
	for i, item := range b.items {
		err := item.Refusal
		if err == nil {
			_, err = b.jobs.settings(item.Draft)
		}
		if err != nil {
			refused[i] = err
			continue
		}
		b.drafted = append(b.drafted, i)
	}
	return refused
}

// refuse answers items that are not accepted. Once the database is away it is
// not asked again for each of a thousand.
func (b *batch) refuse(ctx context.Context, why map[int]error) {
	var away error
	for i := range b.items {
		reason, ok := why[i]
		if !ok {
			continue
		}
		if away == nil {
			b.receipts[i], b.errs[i] = b.jobs.Refuse(ctx, b.items[i].Request, reason)
		} else {
			b.errs[i] = away
		}
		if errors.Is(b.errs[i], ErrUnavailable) {
			away = b.errs[i]
		}
	}
}

// firsts returns the drafted items whose key stands in the batch for the first
// time, and notes of the others which one that was.
func (b *batch) firsts() []int {
	type owner struct {
		tenant idempotency.Tenant
		key    idempotency.Key
	}
	seen := map[owner]int{}
	b.first = map[int]int{}
	var firsts []int
	for _, i := range b.drafted {
		req := b.items[i].Request
		k := owner{req.Tenant, req.Key}
		if at, ok := seen[k]; ok {
			b.first[i] = at
			continue
		}
		seen[k] = i
		firsts = append(firsts, i)
	}
	return firsts
}

// admit returns the items that the tenant's quota has room for. When it has not
// for all, it is not spent on keys that are known already.
func (b *batch) admit(ctx context.Context, items []int) []int {
	if len(items) == 0 {
		return nil
	}
	room, err := b.jobs.Quota.room(ctx, b.items[items[0]].Request.Tenant)
	if err != nil {
		for _, i := range items {
			b.errs[i] = err
		}
		return nil
	}
	if room >= len(items) {
		return items
	}
	b.full = make(map[int]error, len(items))
	for _, i := range items {
		b.full[i] = ErrQuota
	}
	b.refuse(ctx, b.full)
	var fresh []int
	for _, i := range items {
		if len(fresh) < room && errors.Is(b.errs[i], ErrQuota) {
			fresh = append(fresh, i)
			delete(b.full, i)
		}
	}
	return fresh
}

func (b *batch) accept(ctx context.Context, items []int) {
	if len(items) == 0 {
		return
	}
	items, submissions := b.submissions(ctx, items)
	b.found = make(map[int]Receipt, len(items))
	receipts, errs := b.jobs.Bulk.AcceptAll(ctx, submissions)
	for n, i := range items {
		b.errs[i] = errs[n]
		if errs[n] == nil {
			b.found[i] = receipts[n]
			b.receipts[i], b.errs[i] = b.jobs.accepted(ctx, receipts[n], b.items[i].Request)
		}
	}
}

// submissions makes what is accepted, and answers the items that nothing can be
// made of.
func (b *batch) submissions(ctx context.Context, items []int) (made []int, submissions []Submission) {
	refused := map[int]error{}
	for _, i := range items {
		item := b.items[i]
		s, err := b.jobs.submission(item.Request, item.Draft, b.jobs.Types[item.Draft.Type])
		if err != nil {
			refused[i] = err
			continue
		}
		made, submissions = append(made, i), append(submissions, s)
	}
	b.refuse(ctx, refused)
	return made, submissions
}

// repeat answers the second and later items of a key from what the first one
// found: with a replay, a mismatch, or the same trouble.
func (b *batch) repeat(ctx context.Context) {
	full := map[int]error{}
	for i, first := range b.first {
		receipt, found := b.found[first]
		switch {
		case found:
			receipt.Record.Fresh = false
			b.receipts[i], b.errs[i] = b.jobs.answered(ctx, receipt, b.items[i].Request)
		case b.full[first] != nil:
			full[i] = ErrQuota
		default:
			b.errs[i] = b.errs[first]
		}
	}
	b.refuse(ctx, full)
}
