package gateway

import (
	"fmt"
	"maps"

	"github.com/sekali/sekali/dispatcher"
	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/job"
)

// sqlDialect is what the sql executor needs to know of the database.
type sqlDialect struct {
	placeholder       func(int) string
	isUniqueViolation func(error) bool
	isPermanent       func(error) bool
}

// noDialect stands in where executors are made only to see whether they can be.
var noDialect = sqlDialect{
	placeholder:       func(int) string { return "?" },
	isUniqueViolation: func(error) bool { return false },
	isPermanent:       func(error) bool { return false },
}

// work makes what the dispatcher runs, for every type.
func (c Config) work(d sqlDialect) (map[job.Type]dispatcher.Work, error) {
	work := map[job.Type]dispatcher.Work{}
	for name, t := range c.allTypes() {
		w, err := c.workOf(name, t, d)
		if err != nil {
			return nil, fmt.Errorf("job type %s: %w", name, err)
		}
		work[job.Type(name)] = w
	}
	return work, nil
}

// types are all job types that can be submitted: also echo, and Go executors without settings of
// their own.
func (c Config) types() map[string]JobType {
	types := map[string]JobType{echoType: {Executor: kindEcho}}
	for name := range c.Executors {
		types[name] = JobType{Executor: kindFunc}
	}
	for name := range c.TxExecutors {
		types[name] = JobType{Executor: kindFunc}
	}
	maps.Copy(types, c.JobTypes)
	return types
}

func (c Config) workOf(name string, t JobType, d sqlDialect) (dispatcher.Work, error) {
	execute, executeTx, err := t.executors(c, d)
	if err != nil {
		return dispatcher.Work{}, err
	}
	if t.Executor == kindFunc {
		execute, executeTx = c.Executors[name], c.TxExecutors[name]
	}
	settings, err := t.keyed(t.settings(c))
	if err != nil {
		return dispatcher.Work{}, err
	}
	if settings, err = t.schemed(settings); err != nil {
		return dispatcher.Work{}, err
	}
	settings.Transactional = executeTx != nil
	return dispatcher.Work{
		Settings: settings, Kind: t.Executor, Slots: c.slotsOf(t), Execute: execute, ExecuteTx: executeTx, Remote: t.Executor == kindRemote,
	}, nil
}

// keyed adds how jobs of the type get their keys.
func (t JobType) keyed(s job.Settings) (job.Settings, error) {
	if t.BusinessKey != "" {
		template, err := executor.NewBusinessKey(t.BusinessKey)
		if err != nil {
			return s, err
		}
		s.BusinessKey = template.Key
	}
	if t.OperationKey != "" {
		template, err := executor.NewOperationKey(t.OperationKey)
		if err != nil {
			return s, err
		}
		s.OperationKey = template.Key
	}
	return s, nil
}

// schemed adds what payloads of the type must be.
func (t JobType) schemed(s job.Settings) (job.Settings, error) {
	if t.Schema == "" {
		return s, nil
	}
	schema, err := newPayloadSchema(t.Schema)
	if err != nil {
		return s, fmt.Errorf("schema %s: %w", t.Schema, err)
	}
	s.CheckPayload = schema.check
	return s, nil
}

// executors makes the type's executor; one of the two is nil.
func (t JobType) executors(c Config, d sqlDialect) (executor.Executor, executor.TxExecutor, error) {
	limit := int64(c.Limits.Result)
	switch {
	case t.Executor == kindHTTP && t.HTTP != nil:
		e, err := t.httpExecutor(limit)
		return e, nil, err
	case t.Executor == kindCommand && t.Command != nil:
		e, err := executor.NewCommand(executor.CommandConfig{
			Argv: t.Command.Argv, Env: t.Command.Env, Dir: t.Command.Dir, ResultLimit: limit, ErrorBody: t.ErrorBody,
		})
		return e, nil, err
	case t.Executor == kindSQL && t.SQL != nil:
		e, err := executor.NewSQL(executor.SQLConfig{
			Statement: t.SQL.Statement, Existing: t.SQL.Existing, ResultLimit: limit, Placeholder: d.placeholder,
			IsUniqueViolation: d.isUniqueViolation, IsPermanent: d.isPermanent,
		})
		return nil, e, err
	case t.Executor == kindEcho:
		return executor.Echo{}, nil, nil
	case t.Executor == kindCallback:
		e, err := c.callbackExecutor()
		return e, nil, err
	}
	return nil, nil, nil
}

// httpExecutor can reconcile where it was told whom to ask.
func (t JobType) httpExecutor(limit int64) (executor.Executor, error) {
	cfg := executor.HTTPConfig{
		URL: t.HTTP.URL, Headers: t.HTTP.Headers, Secret: t.HTTP.Secret, ResultLimit: limit, ErrorBody: t.ErrorBody,
	}
	if t.HTTP.ReconcileURL == "" {
		return executor.NewHTTP(cfg)
	}
	return executor.NewReconcilingHTTP(cfg, t.HTTP.ReconcileURL)
}
