package lock

import (
	"context"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/internal/batching"
)

const (
	// pipelines is how many may be under way at once: the next one gathers while the
	// answers of the others come.
	pipelines = 4
	// pipelineSize is what Redis answers in a small part of a call's timeout.
	pipelineSize = 500
)

// scriptCall is one run of a script on one lock.
type scriptCall struct {
	script *redis.Script
	lock   *redisLock
	args   []any
	// telling: how it ends says whether Redis works. What only cleans up after a call
	// that failed says nothing: it may need less of Redis than that.
	telling bool
}

func releaseCall(l *redisLock) scriptCall {
	return scriptCall{script: releaseScript, lock: l, args: []any{l.owner}}
}

type scriptAnswer struct {
	done bool
	err  error
}

func (r *Redis) gather() {
	r.calls = batching.New(batching.Config[scriptCall]{Flushes: pipelines, Size: pipelineSize, Leave: true}, r.flush)
}

// run runs the script together with what other callers ask just now, and reports
// what it returned. When ctx ends it may still be run.
func (r *Redis) run(ctx context.Context, c scriptCall) (bool, error) {
	answer, err := r.calls.Do(ctx, c)
	if err != nil {
		return false, err
	}
	return answer.done, answer.err
}

// flush runs the calls in one pipeline. One that fails is no matter of its
// neighbours. A lock whose caller has left and released it may have been taken by
// its call after that release, which went another way: it is released again.
func (r *Redis) flush(ctx context.Context, together []*batching.Call[scriptCall, scriptAnswer]) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	calls := make([]scriptCall, len(together))
	for i, c := range together {
		calls[i] = c.In
	}
	answers := r.send(ctx, calls)
	r.report(calls, answers)
	var left []scriptCall
	for i, c := range together {
		if c.In.script == takeScript && c.In.lock.released.Load() { // before the caller knows the answer
			left = append(left, releaseCall(c.In.lock))
		}
		c.Answer(answers[i])
	}
	if len(left) > 0 {
		// The time of the flush may be used up: that is why they have left.
		again, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.cfg.Timeout)
		defer cancel()
		r.send(again, left)
	}
}

// report tells the breaker of a pipeline, once: a connection that breaks is one
// failure, however many calls were on it.
func (r *Redis) report(calls []scriptCall, answers []scriptAnswer) {
	telling, failed := 0, 0
	for i, c := range calls {
		if c.telling {
			telling++
		}
		if c.telling && answers[i].err != nil {
			failed++
		}
	}
	if telling > 0 {
		r.breaker.Report(failed < telling)
	}
}

// send sends the calls by the digests of their scripts, and once more with their
// scripts those whose script Redis does not know.
func (r *Redis) send(ctx context.Context, calls []scriptCall) []scriptAnswer {
	answers := make([]scriptAnswer, len(calls))
	var unknown []int
	for i, c := range r.pipeline(ctx, calls, (*redis.Script).EvalSha) {
		if redis.HasErrorPrefix(c.Err(), "NOSCRIPT") {
			unknown = append(unknown, i)
		}
		answers[i].done, answers[i].err = c.Bool()
	}
	if len(unknown) == 0 {
		return answers
	}
	again := make([]scriptCall, len(unknown))
	for n, i := range unknown {
		again[n] = calls[i]
	}
	for n, c := range r.pipeline(ctx, again, (*redis.Script).Eval) {
		answers[unknown[n]].done, answers[unknown[n]].err = c.Bool()
	}
	return answers
}

// pipeline runs the calls in one round trip. Each command has its own error.
func (r *Redis) pipeline(
	ctx context.Context, calls []scriptCall,
	eval func(*redis.Script, context.Context, redis.Scripter, []string, ...any) *redis.Cmd,
) []*redis.Cmd {
	pipeline := r.cfg.Client.Pipeline()
	commands := make([]*redis.Cmd, len(calls))
	for i, c := range calls {
		commands[i] = eval(c.script, ctx, pipeline, []string{prefix + c.lock.key}, c.args...)
	}
	_, _ = pipeline.Exec(ctx)
	return commands
}
