package gateway

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/job"
)

// checkRules looks at what the type says about keys, locks and what becomes of
// its jobs. s are its settings in force.
func (t JobType) checkRules(k *check, path, name string, s job.Settings, c Config) {
	k.oneOf(path+".on_business_key_conflict", string(s.OnConflict), string(job.ConflictReturn), string(job.ConflictReject), string(job.ConflictQueue))
	k.oneOf(path+".lock", string(s.Lock), string(job.LockNone), string(job.LockKey), string(job.LockBusinessKey))
	k.that(t.Executor != kindRemote || s.Lock == job.LockNone, path+".lock", s.Lock,
		"must be none with executor: remote: a lock is kept by the process that runs the job, and here that is none of the gateway's; the lease keeps the others out")
	if t.BusinessKey != "" {
		_, err := executor.NewBusinessKey(t.BusinessKey)
		checkTemplate(k, path+".business_key", t.BusinessKey, err)
	}
	if t.OperationKey != "" {
		_, err := executor.NewOperationKey(t.OperationKey)
		checkTemplate(k, path+".operation_key", t.OperationKey, err)
	}
	t.checkUnknown(k, path, name, s.OnUnknown, c)
	t.checkCompensate(k, path, name, c)
}

// checkTemplate reports what is wrong without saying again where.
func checkTemplate(k *check, path, text string, err error) {
	if err != nil {
		k.that(false, path, text, errors.Unwrap(err).Error())
	}
}

// checkUnknown finds policies about unknown outcomes where none are, and
// questions that nobody could be asked.
func (t JobType) checkUnknown(k *check, path, name string, policy job.UnknownPolicy, c Config) {
	at := path + ".on_unknown_outcome"
	_, goesTx := c.TxExecutors[name]
	switch {
	case policy == job.UnknownRetry:
	case policy != job.UnknownReconcile && policy != job.UnknownPark:
		k.oneOf(at, string(policy), string(job.UnknownRetry), string(job.UnknownReconcile), string(job.UnknownPark))
	case t.Executor == kindSQL || goesTx:
		k.that(false, at, policy, "must be retry here: the work and the job's end are one transaction, so an attempt without an end has left nothing behind")
	case t.Executor == kindEcho:
		k.that(false, at, policy, "must be retry here: an echo does nothing")
	case policy != job.UnknownReconcile:
	case t.Executor == kindHTTP:
		k.that(t.unknownDefault() == job.UnknownReconcile, at, policy, "needs http.reconcile_url: whom to ask")
	case t.Executor == kindFunc:
		_, can := c.Executors[name].(executor.Reconciler)
		k.that(can, at, policy, "needs a Go executor with the method Reconcile (executor.Reconciler)")
	default:
		k.that(false, at, policy, fmt.Sprintf("is for executor: http with http.reconcile_url; with executor: %s nobody can be asked: take retry or park", t.Executor))
	}
}

func (t JobType) checkCompensate(k *check, path, name string, c Config) {
	if t.Compensate == "" {
		return
	}
	at := path + ".compensate"
	_, known := c.types()[t.Compensate]
	k.that(known, at, t.Compensate, "takes the name of a configured job type")
	circle := c.compensationCircle(name)
	k.that(circle == nil, at, t.Compensate,
		fmt.Sprintf("goes round in a circle (%s): jobs that fail would follow one another for ever", strings.Join(circle, " → ")))
}

// compensationCircle is the way from the type over those that compensate it back
// to itself; nil if there is none. Whatever the type leads to is not its circle.
func (c Config) compensationCircle(name string) []string {
	way := []string{name}
	for next := c.JobTypes[name].Compensate; next != ""; next = c.JobTypes[next].Compensate {
		if next == name {
			return append(way, next)
		}
		if slices.Contains(way, next) {
			return nil
		}
		way = append(way, next)
	}
	return nil
}
