package repositorytest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

var queueing = cases{
	"Row80 queue lets jobs run one after the other":             testQueueOrder,
	"Row80 the order of a batch is the order of the queue":      testQueueBatch,
	"Row80 a repetition in the queue is a replay":               testQueueRepetition,
	"Row80 a newcomer does not overtake those that wait":        testQueueNewcomer,
	"Row80 other policies meet the job that waits longest":      testQueueOtherPolicies,
	"Q16 whatever ends the holder, the next one goes":           testQueueFree,
	"a holder between two attempts keeps its business key":      testQueueRetrying,
	"a job that waits for its time and its turn waits for both": testQueueScheduled,
	"Unblock keeps to its limit and goes round":                 testQueueLimit,
	"Q4 Unblock finds a free key behind hundreds of others":     testQueueMany,
}

func queued(w World, key, business string, changes ...func(*job.Submission)) job.Submission {
	return submission(w, key, `{}`, append([]func(*job.Submission){withBusinessKey(business, job.ConflictQueue)}, changes...)...)
}

// unblock lets jobs go and tells their types.
func unblock(t *testing.T, w World, limit int) []job.Type {
	t.Helper()
	types, err := w.Repo.Unblock(t.Context(), limit)
	if err != nil {
		t.Fatalf("unblock: %v", err)
	}
	return types
}

// oneByOne claims and ends the jobs of one business key and returns their order.
func oneByOne(t *testing.T, w World) []idempotency.Key {
	t.Helper()
	var order []idempotency.Key
	for {
		claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 5, Worker: "w", Lease: lease})
		if err != nil || len(claimed) > 1 {
			t.Fatalf("%d run at once, %v", len(claimed), err)
		}
		if len(claimed) == 0 {
			return order
		}
		if types := unblock(t, w, 5); len(types) != 0 {
			t.Fatal("the next one goes while the holder runs")
		}
		nothingToClaim(t, w)
		order = append(order, claimed[0].Key)
		if !finish(t, w, succeed(claimed[0].Lease)) {
			t.Fatal("not finished")
		}
		nothingToClaim(t, w)
		unblock(t, w, 5)
	}
}

func wantOrder(t *testing.T, got []idempotency.Key, want ...idempotency.Key) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}

func testQueueOrder(t *testing.T, w World) {
	for _, key := range []string{"c", "a", "d", "b"} {
		s := queued(w, key, "order 1")
		receipt, err := w.Repo.Accept(t.Context(), s)
		if err != nil || !receipt.Record.Fresh || receipt.Alias || receipt.Job.ID != s.Job.ID || !equalResponse(receipt.Record.Response, s.Response) {
			t.Fatalf("accept %s: %+v, %v", key, receipt, err)
		}
	}
	if found, err := w.Repo.Find(t.Context(), tenant, "d"); err != nil || found.Alias || found.Job.Status != job.Pending {
		t.Errorf("found: %+v, %v", found, err)
	}
	wantOrder(t, oneByOne(t, w), "c", "a", "d", "b")
}

func testQueueBatch(t *testing.T, w World) {
	accept(t, w, queued(w, "first", "order 1"))
	var batch []job.Submission
	want := []idempotency.Key{"first"}
	for i := range 6 {
		key := fmt.Sprint("k", (i*5)%6) // in an order that is not that of the keys
		batch, want = append(batch, queued(w, key, "order 1")), append(want, idempotency.Key(key))
	}
	receipts, errs := w.Repo.AcceptAll(t.Context(), batch)
	for i := range batch {
		if errs[i] != nil || !receipts[i].Record.Fresh || receipts[i].Alias {
			t.Fatalf("%d: %+v, %v", i, receipts[i], errs[i])
		}
	}
	wantOrder(t, oneByOne(t, w), want...)
}

func testQueueRepetition(t *testing.T, w World) {
	for range 2 { // of the holder and of one that waits
		for _, key := range []string{"holder", "behind"} {
			receipt, err := w.Repo.Accept(t.Context(), queued(w, key, "order 1"))
			if err != nil || receipt.Alias || receipt.Job.Key != idempotency.Key(key) || receipt.Record.Response.Status != 202 {
				t.Errorf("%s: %+v, %v", key, receipt, err)
			}
		}
	}
	if n := count(t, w, `select count(*) from jobs`); n != 2 {
		t.Errorf("%d jobs", n)
	}
}

func testQueueNewcomer(t *testing.T, w World) {
	accept(t, w, queued(w, "holder", "order 1"))
	accept(t, w, queued(w, "behind", "order 1"))
	if !finish(t, w, succeed(claim(t, w, "w", lease).Lease)) {
		t.Fatal("not finished")
	}
	accept(t, w, queued(w, "newcomer", "order 1")) // nobody holds the key just now
	nothingToClaim(t, w)
	if types := unblock(t, w, 5); !slices.Equal(types, []job.Type{kind}) {
		t.Errorf("types %v", types)
	}
	wantOrder(t, oneByOne(t, w), "behind", "newcomer")
}

func testQueueOtherPolicies(t *testing.T, w World) {
	for _, key := range []string{"holder", "behind", "last"} {
		accept(t, w, queued(w, key, "order 1"))
	}
	for _, want := range []idempotency.Key{"holder", "behind"} {
		_, err := w.Repo.Accept(t.Context(), submission(w, "refused", `{}`, withBusinessKey("order 1", job.ConflictReject)))
		if refused := wantError[*job.BusinessKeyError](t, err); refused.Holder != want {
			t.Errorf("refused for %s, want %s", refused.Holder, want)
		}
		receipt, err := w.Repo.Accept(t.Context(), submission(w, "alias of "+string(want), `{}`, withBusinessKey("order 1", job.ConflictReturn)))
		if err != nil || !receipt.Alias || receipt.Job.Key != want {
			t.Errorf("bound to %s, want %s (%v)", receipt.Job.Key, want, err)
		}
		if want == "holder" && !finish(t, w, succeed(claim(t, w, "w", lease).Lease)) {
			t.Fatal("not finished")
		}
	}
}

func testQueueFree(t *testing.T, w World) {
	ends := map[idempotency.Key]func() job.Ending{
		"succeeded": func() job.Ending { return succeed(claim(t, w, "w", lease).Lease) },
		"failed":    func() job.Ending { return failEnding(claim(t, w, "w", lease).Lease) },
		"lost":      func() job.Ending { return lostEnding(lose(t, w).Lease) },
		"cancelled": func() job.Ending { return cancelWaiting(job.Lease{ID: now(t, w, "cancelled").ID}) },
		"waiting":   func() job.Ending { return cancelWaiting(job.Lease{ID: now(t, w, "waiting").ID}) },
	}
	order := []idempotency.Key{"succeeded", "failed", "lost", "waiting", "cancelled"}
	for _, key := range append(order, "last") {
		accept(t, w, queued(w, string(key), "order 1"))
	}
	if !finish(t, w, ends["waiting"]()) { // from the middle of the queue
		t.Fatal("not finished")
	}
	for _, key := range order {
		if key == "waiting" {
			continue
		}
		if !finish(t, w, ends[key]()) {
			t.Fatalf("%s: not finished", key)
		}
		if types := unblock(t, w, 5); len(types) != 1 {
			t.Fatalf("%s: the next one does not go", key)
		}
	}
	wantOrder(t, oneByOne(t, w), "last")
}

func testQueueRetrying(t *testing.T, w World) {
	accept(t, w, queued(w, "holder", "order 1"))
	accept(t, w, queued(w, "behind", "order 1"))
	if !requeue(t, w, retry(claim(t, w, "w", lease).Lease, time.Hour)) {
		t.Fatal("not requeued")
	}
	if types := unblock(t, w, 5); len(types) != 0 {
		t.Error("the holder was overtaken")
	}
	nothingToClaim(t, w)
}

func testQueueScheduled(t *testing.T, w World) {
	accept(t, w, queued(w, "holder", "order 1"))
	accept(t, w, queued(w, "behind", "order 1", scheduledIn(-time.Minute)))
	if types, _ := promote(t, w, 5); len(types) != 1 {
		t.Errorf("promoted %v", types)
	}
	if j := now(t, w, "behind"); j.Status != job.Pending || j.Version != 2 {
		t.Errorf("promoted: %+v", j)
	}
	wantOrder(t, oneByOne(t, w), "holder", "behind")
	if j := now(t, w, "behind"); j.Version != 4 {
		t.Errorf("letting a job go is no transition: %+v", j)
	}
}

// ended ends the unblocked jobs of some business keys behind the repository's
// back, as fast as that goes.
func ended(t *testing.T, w World, businessKeys ...string) {
	t.Helper()
	for _, key := range businessKeys {
		execute(t, w, `delete from jobs where business_key = $1 and not blocked`, key)
	}
}

func testQueueLimit(t *testing.T, w World) {
	const keys = 7
	for i := range keys {
		business := fmt.Sprint("order ", i)
		accept(t, w, queued(w, business+" holder", business))
		accept(t, w, queued(w, business+" behind", business))
		ended(t, w, business)
	}
	for _, want := range []int{3, 6, 7, 7} {
		unblock(t, w, 3)
		if n := count(t, w, `select count(*) from jobs where not blocked`); n != want {
			t.Fatalf("%d jobs go, want %d", n, want)
		}
	}
	if n := count(t, w, `select count(*) from jobs where blocked`); n != 0 {
		t.Errorf("%d jobs still wait", n)
	}
}

func testQueueMany(t *testing.T, w World) {
	const keys = 300
	var batch []job.Submission
	for i := range keys {
		business := fmt.Sprint("order ", i)
		batch = append(batch, queued(w, business+" holder", business), queued(w, business+" behind", business))
	}
	_, errs := w.Repo.AcceptAll(t.Context(), batch)
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	if types := unblock(t, w, 100); len(types) != 0 {
		t.Fatal("a job overtakes its holder")
	}
	free := []string{"order 0", "order 100", "order 260", "order 299"}
	ended(t, w, free...)
	unblock(t, w, 100)
	if n := count(t, w, `select count(*) from jobs where not blocked and key like '%behind'`); n != len(free) {
		t.Errorf("%d jobs go, want %d", n, len(free))
	}
}
