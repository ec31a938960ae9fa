package main_test

import (
	"path/filepath"
	"strings"
	"testing"
)

func TestHealth(t *testing.T) {
	t.Parallel()
	fine := once(t, "GET /healthz", 200, `{"status":"ok"}`)
	other := once(t, "GET /healthz", 200, "<html>")
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--url", fine.URL}, 0, ""},
		{[]string{"--listen", strings.TrimPrefix(fine.URL, "http://")}, 0, ""},
		{[]string{"--listen", strings.TrimPrefix(nowhere, "http://")}, 4, "the gateway at " + nowhere + " cannot be reached: "},
		{[]string{"--url", nowhere}, 4, "or name its address with --listen (listen) or --url"},
		{[]string{"--url", other.URL}, 4, "this is not a Sekali gateway"},
		{[]string{"--url", ""}, 2, "--url is empty"},
		{[]string{"--listen", "x"}, 2, "listen: "},
	} {
		out, notes, code := run(append([]string{"health"}, tt.args...)...)
		if code != tt.code || out != "" || (code == 0) != (notes == "") || code == 4 && strings.Count(notes, "\n") != 1 {
			t.Errorf("%q: exit code %d: %s%s", tt.args, code, out, notes)
		}
		has(t, notes, tt.want)
	}
	if n := len(fine.requests()); n != 2 {
		t.Errorf("asked %d times", n)
	}
	if _, notes, code := run("health", "--url", fine.URL, "--config", filepath.Join(t.TempDir(), "none.yaml")); code != 0 {
		t.Errorf("the configuration is not asked: exit code %d: %s", code, notes)
	}
}
