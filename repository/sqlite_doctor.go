package repository

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	sqlitedriver "modernc.org/sqlite"
)

const fileVersionSQL = `select sqlite_version() as name`

func (s *sqlite) readServer(ctx context.Context) (ServerReading, error) {
	rows, err := collect[nameRow](ctx, s.reader, fileVersionSQL)
	if err != nil {
		return ServerReading{}, err
	}
	return ServerReading{Version: "SQLite " + string(rows[0].Name)}, nil
}

func (s *sqlite) readFile(ctx context.Context, patience time.Duration) (FileReading, error) {
	reading := FileReading{Path: s.path, Free: freeBytes(filepath.Dir(s.path))}
	info, err := os.Stat(s.path)
	if err != nil {
		return reading, err
	}
	reading.Mode, reading.Size = info.Mode(), info.Size()
	if err := s.reader.db.QueryRowContext(ctx, `pragma journal_mode`).Scan(&reading.Journal); err != nil {
		return reading, err
	}
	reading.Damage, err = s.damage(ctx, patience)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return reading, nil
	}
	reading.Checked = err == nil
	return reading, err
}

// damage is what the quick check finds: it reads the whole file, but compares no
// index with its table. Damage may be so bad that the check itself fails of it.
func (s *sqlite) damage(ctx context.Context, patience time.Duration) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	damage, err := s.quickCheck(ctx)
	var e *sqlitedriver.Error
	switch {
	case err == nil:
		return damage, nil
	case ctx.Err() != nil: // the driver may say "interrupted" instead
		return nil, ctx.Err()
	case errors.As(err, &e) && (e.Code()&0xff == codeCorrupt || e.Code()&0xff == codeNoDatabase):
		return append(damage, e.Error()), nil
	}
	return nil, err
}

func (s *sqlite) quickCheck(ctx context.Context) ([]string, error) {
	rows, err := s.reader.db.QueryContext(ctx, `pragma quick_check(5)`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var damage []string
	for rows.Next() {
		var line string
		if err := rows.Scan(&line); err != nil {
			return damage, err
		}
		if line != "ok" {
			damage = append(damage, line)
		}
	}
	return damage, rows.Err()
}

// The result codes of a file that is broken, or something else.
const (
	codeCorrupt    = 11
	codeNoDatabase = 26
)
