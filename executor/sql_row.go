package executor

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/sekali/sekali/job"
)

// firstRow returns the first row that the query returns as a JSON object, nil
// if it returns none.
func (s *SQL) firstRow(ctx context.Context, tx *sql.Tx, t template, args []any) (*job.Result, error) {
	rows, err := tx.QueryContext(ctx, t.query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var first []byte
	if rows.Next() {
		if first, err = rowJSON(rows); err != nil {
			return nil, err
		}
	}
	// To the end: Postgres may tell of a violation after rows that it returned,
	// and SQLite steps through a query only as far as it is read.
	for rows.Next() {
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if first == nil {
		return nil, nil
	}
	if int64(len(first)) > s.resultLimit {
		return nil, tooLarge(s.resultLimit)
	}
	return &job.Result{Body: first, MediaType: mediaJSON}, nil
}

// rowJSON is the current row as an object. Of columns of one name the first
// counts: an object with a member twice is no JSON to many readers.
func rowJSON(rows *sql.Rows) ([]byte, error) {
	columns, err := rows.ColumnTypes()
	if err != nil {
		return nil, err
	}
	values := make([]any, len(columns))
	targets := make([]any, len(columns))
	for i := range values {
		targets[i] = &values[i]
	}
	if err := rows.Scan(targets...); err != nil {
		return nil, err
	}
	object := bytes.NewBufferString("{")
	for i, column := range columns {
		sameName := func(other *sql.ColumnType) bool { return other.Name() == column.Name() }
		if slices.IndexFunc(columns, sameName) < i {
			continue
		}
		if i > 0 {
			object.WriteByte(',')
		}
		if err := writeMember(object, column, values[i]); err != nil {
			return nil, err
		}
	}
	object.WriteByte('}')
	return object.Bytes(), nil
}

func writeMember(object *bytes.Buffer, column *sql.ColumnType, value any) error {
	name, err := encode(column.Name())
	if err != nil {
		return err
	}
	encoded, err := columnJSON(column, value)
	if err != nil {
		return err
	}
	object.Write(name)
	object.WriteByte(':')
	object.Write(encoded)
	return nil
}

var (
	typeBytes = reflect.TypeFor[[]byte]()
	typeBool  = reflect.TypeFor[bool]()
)

// columnJSON is a column's value in JSON. What a driver hands over depends on
// the column's type: bytes may be bytes or the text of a type that it does not
// know, and only its scan type tells.
func columnJSON(column *sql.ColumnType, value any) ([]byte, error) {
	kind := strings.ToUpper(column.DatabaseTypeName())
	switch v := value.(type) {
	case []byte:
		if column.ScanType() == typeBytes {
			return encode(v) // base64
		}
		return textJSON(kind, string(v))
	case string:
		return textJSON(kind, v)
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return encode(floatName(v))
		}
	case int64:
		if column.ScanType() == typeBool { // SQLite keeps booleans as 0 and 1
			return encode(v != 0)
		}
	case time.Time:
		return encode(timeText(kind, v))
	}
	return encode(value)
}

// textJSON keeps what is JSON already as it is: documents, and numbers that no
// Go type holds without loss.
func textJSON(kind, text string) ([]byte, error) {
	switch kind {
	case "JSON", "JSONB", "NUMERIC":
		if json.Valid([]byte(text)) {
			return []byte(text), nil
		}
	}
	return encode(text)
}

// floatName is what Postgres writes; JSON has no such numbers.
func floatName(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "Infinity"
	case math.IsInf(v, -1):
		return "-Infinity"
	}
	return "NaN"
}

// timeText is RFC 3339 in UTC; of a date or a time of day only that part.
func timeText(kind string, t time.Time) string {
	switch kind {
	case "DATE":
		return t.Format(time.DateOnly)
	case "TIME":
		return t.Format("15:04:05.999999")
	case "TIMETZ":
		return t.Format("15:04:05.999999Z07:00")
	}
	return t.UTC().Format(time.RFC3339Nano)
}
