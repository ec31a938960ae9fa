package e2e_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// page is GET /jobs decoded.
type page struct {
	keys []string
	docs map[string]map[string]any
	next string
}

// listed reads one page; query is as it stands behind the question mark.
func (g *gateway) listed(t testing.TB, query string) page {
	t.Helper()
	a := g.get("/jobs?"+query).want(t, http.StatusOK, "Content-Type: application/json", "Cache-Control: private, no-cache")
	doc := a.json(t)
	jobs, ok := doc["jobs"].([]any)
	if !ok {
		t.Fatalf("%s: no list: %s", query, a.body)
	}
	p := page{docs: map[string]map[string]any{}}
	for _, entry := range jobs {
		j := entry.(map[string]any)
		p.keys = append(p.keys, j["key"].(string))
		p.docs[j["key"].(string)] = j
	}
	next, isNull := doc["next_cursor"]
	if p.next, ok = next.(string); !ok && (next != nil || !isNull) {
		t.Errorf("%s: next_cursor is %v", query, next)
	}
	return p
}

// walk reads all pages and calls between before each one but the first.
func (g *gateway) walk(t testing.TB, query string, between func()) []string {
	t.Helper()
	var keys []string
	p := g.listed(t, query)
	for pages := 0; ; pages++ {
		keys = append(keys, p.keys...)
		if p.next == "" {
			return keys
		}
		if pages > 100 {
			t.Fatalf("the walk does not end: %q", keys)
		}
		between()
		p = g.listed(t, query+"&cursor="+url.QueryEscape(p.next))
	}
}

// wantKeys compares the keys of a walk with the expected ones, in any order.
func wantKeys(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func TestContract_Row111_Filters(t *testing.T) {
	sink := newSink(t)
	config := sink.types(map[string]string{"bad": "/status/422", "down": "/status/500"}) + "defaults: {backoff: {base: 1h, cap: 2h}}"
	onGateway(t, config, func(t *testing.T, g *gateway) {
		submit := func(key, body string) string {
			at := instant(t, g.submit(key, body).want(t, http.StatusAccepted).json(t)["created_at"])
			return at.Format(time.RFC3339Nano)
		}
		submit("a-1", `{"type":"echo"}`)
		submit("a-2", `{"type":"bad","business_key":"b 1"}`)
		submit("A-3", `{"type":"echo","delay_seconds":3600,"business_key":"b%1"}`)
		middle := submit("a_4", `{"type":"down"}`)
		submit("\"%5 x'\"", `{"type":"echo","run_at":"2000-01-01T00:00:00Z"}`)
		for _, key := range []string{"a-1", "a-2", "%255%20x'"} {
			g.finished(key)
		}
		g.get("/jobs/a_4", `If-None-Match: "1"`, "Prefer: wait=20")
		g.get("/jobs/a_4", `If-None-Match: "2"`, "Prefer: wait=20")
		all := []string{"a-1", "a-2", "A-3", "a_4", "%5 x'"}
		if got := g.listed(t, "").keys; !slices.Equal(got, []string{"%5 x'", "a_4", "A-3", "a-2", "a-1"}) {
			t.Errorf("not newest first: %q", got)
		}
		at, err := time.Parse(time.RFC3339Nano, middle)
		if err != nil {
			t.Fatal(err)
		}
		for query, want := range map[string][]string{
			"status=succeeded": {"a-1", "%5 x'"}, "status=failed": {"a-2"}, "status=scheduled": {"A-3"}, "status=retrying": {"a_4"},
			"status=pending": {}, "status=processing": {}, "status=cancelled": {}, "status=succeeded&type=bad": {},
			"type=echo": {"a-1", "A-3", "%5 x'"}, "type=none": {}, "type=Echo": {}, "business_key=b+1": {"a-2"}, "business_key=b%251": {"A-3"},
			"business_key=b_1": {}, "key_prefix=a": {"a-1", "a-2", "a_4"}, "key_prefix=a-": {"a-1", "a-2"}, "key_prefix=a_": {"a_4"},
			"key_prefix=%25": {"%5 x'"}, "key_prefix=%255+x%27": {"%5 x'"}, "key_prefix=*": {}, "key_prefix=%5C": {}, "key_prefix=%27+or+1%3D1+--": {},
			"key_prefix=a-&type=echo&status=succeeded": {"a-1"}, "status=&type=&business_key=&key_prefix=&created_after=&created_before=&limit=&cursor=": all,
			"created_after=2000-01-01T00:00:00Z": all, "created_before=2000-01-01T00:00:00Z": {}, "created_before=0001-01-01T00:00:00Z": {},
			"created_before=9999-12-31T23:59:59Z": all, "created_after=9999-12-31T23:59:59.999Z": {}, "created_after=0001-01-01T00:00:00Z": all,
			"created_after=1969-12-31T23:59:59-23:59": all,
			"created_before=" + middle:                {"a-1", "a-2", "A-3"}, "created_after=" + middle: {"%5 x'"},
			// Bounds finer than the millisecond that a job's time is kept in.
			"created_before=" + at.Add(time.Microsecond).Format(time.RFC3339Nano):                                                                          {"a-1", "a-2", "A-3", "a_4"},
			"created_after=" + at.Add(-time.Microsecond).Format(time.RFC3339Nano):                                                                          {"a_4", "%5 x'"},
			"created_before=" + at.Add(-time.Microsecond).Format(time.RFC3339Nano):                                                                         {"a-1", "a-2", "A-3"},
			"created_before=" + url.QueryEscape(at.In(time.FixedZone("", 7*3600)).Format(time.RFC3339Nano)):                                                {"a-1", "a-2", "A-3"},
			"created_after=" + at.Add(-time.Millisecond).Format(time.RFC3339Nano) + "&created_before=" + at.Add(time.Millisecond).Format(time.RFC3339Nano): {"a_4"},
		} {
			p := g.listed(t, query)
			wantKeys(t, query, p.keys, want...)
			one := strings.TrimPrefix(strings.ReplaceAll(query+"&limit=1", "&limit=&", "&"), "&")
			wantKeys(t, query+" in pages of one", g.walk(t, strings.ReplaceAll(one, "&cursor=", ""), func() {}), want...)
		}
	})
}

func TestContract_Row112_Failure_BR34_BR40_Security43_BadQueries(t *testing.T) {
	onGateway(t, "", func(t *testing.T, g *gateway) {
		for i := range 3 {
			g.submit(fmt.Sprint("k", i), pending)
		}
		p := g.listed(t, "limit=1&type=echo")
		tampered := []byte(p.next)
		for i := range tampered {
			tampered[i] ^= 1 // still of the alphabet, or not: neither may pass
			a := g.get("/jobs?limit=1&type=echo&cursor=" + url.QueryEscape(string(tampered)))
			a.problem(t, http.StatusBadRequest, "validation-failed")
			tampered[i] ^= 1
		}
		long := strings.Repeat("x", 256)
		for query, field := range map[string]string{
			"limit=-1": "limit", "limit=0": "limit", "limit=201": "limit", "limit=1e9": "limit", "limit=1000000000": "limit", "limit=9223372036854775808": "limit",
			"limit=abc": "limit", "limit=1.5": "limit", "limit=%00": "limit", "limit=1&limit=2": "limit", "limit=&limit=": "limit", "limit=0x1": "limit", "limit=+1": "limit",
			"status=%00": "status", "status=done": "status", "status=Succeeded": "status", "status=succeeded,failed": "status", "status=failed&status=failed": "status",
			"type=%00": "type", "type=%C3%28": "type", "business_key=%00": "business_key", "business_key=a%FFb": "business_key", "key_prefix=a%00b": "key_prefix",
			"key_prefix=" + long: "key_prefix", "key_prefix=%0A": "key_prefix", "type=" + long: "type",
			"cursor=%C3%28": "cursor", "cursor=%00": "cursor", "cursor=abc": "cursor", "cursor=" + p.next: "cursor", "cursor=" + p.next + "&type=other": "cursor",
			"cursor=" + p.next + "&type=echo&status=pending": "cursor", "cursor=" + p.next + "A&type=echo": "cursor", "cursor=" + p.next[:len(p.next)-1] + "&type=echo": "cursor",
			"cursor=" + strings.Repeat("A", 9000): "cursor",
			"created_after=now":                   "created_after", "created_after=2026-01-02": "created_after", "created_after=2026-01-02T03:04:05": "created_after",
			"created_after=2026-01-02T03:04:05+07:00": "created_after", // + is a space
			"created_before=2026-13-02T03:04:05Z":     "created_before", "created_before=2026-02-30T03:04:05Z": "created_before", "created_before=%00": "created_before",
			"created_before=0000-01-01T00:00:00Z": "created_before", "created_before=2026-01-02T03:04:05%2B14:60": "created_before",
			"created_after=9999-12-31T23:59:59-14:00": "created_after",
			"created_after=10000-01-01T00:00:00Z":     "created_after", "created_after=1767225600": "created_after",
			"offset=1": "offset", "Status=failed": "Status", "tenant=other": "tenant", "sort=id%27": "sort", "%3Cscript%3E=1": "<script>", "limit%00=1": "limit\x00",
		} {
			a := g.get("/jobs?" + query)
			p := a.problem(t, http.StatusBadRequest, "validation-failed")
			errors, _ := p["errors"].([]any)
			if len(errors) != 1 || errors[0].(map[string]any)["pointer"] != "?"+field {
				t.Errorf("%s: does not name %q alone: %s", query, field, a.body)
			}
		}
		if p := g.get("/jobs?limit=0&status=x&nope=1").problem(t, http.StatusBadRequest, "validation-failed"); len(p["errors"].([]any)) != 3 {
			t.Errorf("not all three are named: %v", p)
		}
		g.get("/jobs?limit=%zz").problem(t, http.StatusBadRequest, "validation-failed")
		g.get("/jobs?a;b=c").problem(t, http.StatusBadRequest, "validation-failed")
		wantKeys(t, "the largest page", g.listed(t, "limit=200").keys, "k0", "k1", "k2")
		if errors := errorLines(g); len(errors) > 0 {
			t.Errorf("errors in the log: %q", errors)
		}
	})
}

func TestContract_Row111_Failure_BR41_PagesNeitherSkipNorRepeat(t *testing.T) {
	onGateway(t, "", func(t *testing.T, g *gateway) {
		body := `{"type":"echo"}`
		var want []string
		for i := range 60 {
			key := fmt.Sprintf("old-%02d", i)
			if i%3 == 0 { // some are finished, some not: two tables behind one list
				g.submit(key, pending)
			} else {
				g.submit(key, body)
			}
			want = append(want, key)
		}
		for i, key := range want {
			if i%3 == 1 { // the others end by themselves, before or while pages are read
				g.finished(key)
			}
		}
		one := instant(t, g.get("/jobs/old-30").json(t)["created_at"]).Format("2006-01-02T15:04:05.000Z")
		db := g.beside(t)
		for _, table := range []string{"jobs", "finished_jobs"} {
			if _, err := db.ExecContext(t.Context(), fmt.Sprintf("update %s set created_at = '%s'", table, one)); err != nil {
				t.Fatal(err)
			}
		}
		wantKeys(t, "pages of 7", g.walk(t, "limit=7", func() {}), want...)
		wantKeys(t, "pages of 60", g.walk(t, "limit=60", func() {}), want...)
		arrived := 0
		got := g.walk(t, "limit=7", func() {
			for range 3 {
				arrived++
				g.submit(fmt.Sprint("new-", arrived), body)
			}
		})
		wantKeys(t, "pages of 7 while others arrive", got, want...)
		got = g.walk(t, "limit=7&key_prefix=old-", func() { arrived++; g.submit(fmt.Sprint("new-", arrived), body) })
		wantKeys(t, "pages of a filter while others arrive", got, want...)
	})
}

func TestFailure_BR42_PagesCountJobsNotAttempts(t *testing.T) {
	sink := newSink(t)
	config := sink.types(map[string]string{"down": "/status/500"}) + "defaults: {backoff: {base: 10ms, cap: 20ms}}"
	onGateway(t, config, func(t *testing.T, g *gateway) {
		for i := range 5 {
			g.submit(fmt.Sprint("k", i), `{"type":"down","max_attempts":3}`)
		}
		for i := range 5 {
			g.finished(fmt.Sprint("k", i))
		}
		p := g.listed(t, "limit=3")
		if !slices.Equal(p.keys, []string{"k4", "k3", "k2"}) || p.next == "" {
			t.Errorf("page %q, next %q", p.keys, p.next)
		}
		for key, j := range p.docs {
			e, _ := j["error"].(map[string]any)
			if fmt.Sprint(j["attempts"]) != "3" || fmt.Sprint(e["attempt"]) != "3" || j["status"] != "failed" {
				t.Errorf("%s: %v", key, j)
			}
		}
	})
}
