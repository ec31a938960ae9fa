package executor

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"

	"github.com/sekali/sekali/job"
)

// SQLConfig says which statement an SQL executor runs.
type SQLConfig struct {
	// Statement is one statement with placeholders: {{ .payload.order_id }}.
	Statement string
	// Existing is a select that shows what a unique violation of Statement ran
	// into; empty: such a violation fails the job.
	Existing    string
	ResultLimit int64 // of the returned row as JSON, in bytes; 0: DefaultResultLimit

	// The dialect: the parameter of a number (1 is the first), and how to tell
	// the driver's errors apart.
	Placeholder       func(int) string
	IsUniqueViolation func(error) bool
	IsPermanent       func(error) bool // no retry can mend it, e.g. a syntax error
}

// SQL runs one statement in the transaction in which the job ends: its effect
// happens exactly once.
//
// The result is the first returned row as a JSON object, members in the order
// of the columns; without one it is {"rows_affected":n}.
//
// A unique violation undoes the statement. If Existing then returns a row, the
// work had been done before: the job succeeds with that row and the outcome
// job.DuplicateIgnored. Otherwise it fails for good. Either way nothing is done twice.
type SQL struct {
	statement   template
	existing    *template
	resultLimit int64
	isUnique    func(error) bool
	isPermanent func(error) bool
}

var _ TxExecutor = (*SQL)(nil)

// NewSQL returns an SQL executor. The error names what is wrong with the
// statements; whether the database accepts them is seen at the first attempt.
func NewSQL(cfg SQLConfig) (*SQL, error) {
	if cfg.Placeholder == nil || cfg.IsUniqueViolation == nil || cfg.IsPermanent == nil {
		return nil, errors.New("executor: sql: the dialect's functions are missing")
	}
	statement, err := parseTemplate(cfg.Statement, cfg.Placeholder)
	if err != nil {
		err = fmt.Errorf("executor: sql statement: %w", err)
	}
	existing, existingErr := parseExisting(cfg)
	if err := errors.Join(err, existingErr); err != nil {
		return nil, err
	}
	return &SQL{
		statement:   statement,
		existing:    existing,
		resultLimit: cmp.Or(cfg.ResultLimit, DefaultResultLimit),
		isUnique:    cfg.IsUniqueViolation,
		isPermanent: cfg.IsPermanent,
	}, nil
}

func parseExisting(cfg SQLConfig) (*template, error) {
	if cfg.Existing == "" {
		return nil, nil
	}
	t, err := parseTemplate(cfg.Existing, cfg.Placeholder)
	if err != nil {
		return nil, fmt.Errorf("executor: sql existing: %w", err)
	}
	if !t.shape.reads() {
		return nil, fmt.Errorf("executor: sql existing: want a select, not %s", excerpt(cfg.Existing))
	}
	return &t, nil
}

// The savepoint keeps the transaction usable after a unique violation, which
// aborts it on Postgres. It is not released after a success: the commit does.
const (
	takeSavepoint   = `savepoint sekali_statement`
	returnSavepoint = `rollback to savepoint sekali_statement`
)

// ExecuteTx runs the statement.
func (s *SQL) ExecuteTx(ctx context.Context, tx *sql.Tx, c job.Claimed) (Done, error) {
	if s.existing != nil {
		if _, err := tx.ExecContext(ctx, takeSavepoint); err != nil {
			return Done{}, s.failed(ctx, fmt.Errorf("executor: take savepoint: %w", err))
		}
	}
	result, err := s.run(ctx, tx, c)
	if err == nil {
		return Done{Result: result}, nil
	}
	err = fmt.Errorf("executor: run statement: %w", err)
	if s.existing == nil || !s.isUnique(err) {
		return Done{}, s.failed(ctx, err)
	}
	return s.showExisting(ctx, tx, c, err)
}

func (s *SQL) run(ctx context.Context, tx *sql.Tx, c job.Claimed) (*job.Result, error) {
	args, err := s.statement.bind(c)
	if err != nil {
		return nil, notJSON(err)
	}
	if s.statement.shape.returns {
		row, err := s.firstRow(ctx, tx, s.statement, args)
		if err != nil || row != nil {
			return row, err
		}
		return rowsAffected(0), nil
	}
	outcome, err := tx.ExecContext(ctx, s.statement.query, args...)
	if err != nil {
		return nil, err
	}
	n, err := outcome.RowsAffected()
	if err != nil {
		return nil, err
	}
	return rowsAffected(n), nil
}

// showExisting ends the job with what is there already. violation is why.
func (s *SQL) showExisting(ctx context.Context, tx *sql.Tx, c job.Claimed, violation error) (Done, error) {
	if _, err := tx.ExecContext(ctx, returnSavepoint); err != nil {
		return Done{}, s.failed(ctx, fmt.Errorf("executor: return to savepoint: %w", err))
	}
	args, err := s.existing.bind(c)
	if err != nil {
		return Done{}, notJSON(err)
	}
	row, err := s.firstRow(ctx, tx, *s.existing, args)
	if err != nil {
		return Done{}, s.failed(ctx, fmt.Errorf("executor: read existing: %w", err))
	}
	if row == nil {
		return Done{}, s.failed(ctx, violation)
	}
	return Done{Result: row, Outcome: job.DuplicateIgnored}, nil
}

func rowsAffected(n int64) *job.Result {
	return &job.Result{Body: []byte(`{"rows_affected":` + strconv.FormatInt(n, 10) + `}`), MediaType: mediaJSON}
}

// failed turns an error of the database into the attempt's.
func (s *SQL) failed(ctx context.Context, err error) error {
	if attempt := (*job.AttemptError)(nil); errors.As(err, &attempt) {
		return attempt
	}
	if over := ended(ctx); over != nil {
		return over
	}
	if s.isUnique(err) {
		return &job.AttemptError{
			Code:      CodeUniqueViolation,
			Detail:    "another row holds the same unique value",
			Permanent: true,
			Err:       err,
		}
	}
	e := &job.AttemptError{Code: CodeSQL, Detail: "the database failed the statement", Permanent: s.isPermanent(err), Err: err}
	// Drivers of Postgres tell the standard's five characters, which name a
	// class and show no data.
	if state := (interface{ SQLState() string })(nil); errors.As(err, &state) {
		e.Detail += " (SQLSTATE " + state.SQLState() + ")"
	}
	return e
}

func notJSON(err error) error {
	return &job.AttemptError{Code: CodeSQL, Detail: "the payload is not JSON", Permanent: true, Err: err}
}
