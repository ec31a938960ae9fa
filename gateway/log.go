package gateway

import (
	"io"
	"log/slog"
	"os"
)

// NewLogger returns a logger as the configuration says: text for people on a
// terminal, JSON for everything else.
func NewLogger(l Log, w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: l.level()}
	if l.Format == "text" || l.Format == "auto" && isTerminal(w) {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// level returns the slog level that log.level names.
func (l Log) level() slog.Level {
	var level slog.Level
	_ = level.UnmarshalText([]byte(l.Level)) // validated; info if not
	return level
}
