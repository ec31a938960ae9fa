package e2e_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// responseCap is the largest response that is stored.
const responseCap = 1 << 20

// answersOfAllSizes answers as the path says.
func answersOfAllSizes(held *doors) func(w http.ResponseWriter, r *http.Request, n int) {
	return func(w http.ResponseWriter, r *http.Request, n int) {
		h := w.Header()
		h.Set("Content-Type", "text/plain")
		h.Set("Location", fmt.Sprintf("/v1/things/%d", n))
		whole := strings.Repeat("0123456789abcdef", responseCap/16)
		flush := func() { _ = http.NewResponseController(w).Flush() }
		switch r.URL.Path {
		case "/v1/exact":
			_, _ = io.WriteString(w, whole)
		case "/v1/over":
			w.WriteHeader(http.StatusCreated)
			flush() // chunked: nobody knows the length before the end
			_, _ = io.WriteString(w, whole+"!")
		case "/v1/declared":
			h.Set("Content-Length", strconv.Itoa(2*responseCap))
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, whole+whole)
		case "/v1/chunked":
			for part := range 3 {
				_, _ = fmt.Fprintf(w, "part %d of %d;", part, n)
				flush()
			}
		case "/v1/events":
			h.Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: 1\n\n")
			flush()
			held.pass(r)
			_, _ = io.WriteString(w, "data: 2\n\n")
		case "/v1/upgrade":
			h.Set("Connection", "Upgrade")
			h.Set("Upgrade", "echo")
			w.WriteHeader(http.StatusSwitchingProtocols)
			conn, both, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			line, _ := both.ReadString('\n')
			_, _ = both.WriteString("echo " + line)
			_ = both.Flush()
		}
	}
}

// notRetained fails unless the key's request is said to have run, with an answer
// that was not kept.
func (g *gateway) notRetained(t testing.TB, path, key string, status int) {
	t.Helper()
	for range 2 {
		a := g.do(http.MethodPost, path, "{}", jsonType, "Idempotency-Key: "+key).want(t, http.StatusUnprocessableEntity, "Retry-After:")
		if status != http.StatusSwitchingProtocols {
			a.want(t, http.StatusUnprocessableEntity, "Location: /v1/things/1")
		}
		p := a.refused(t, http.StatusUnprocessableEntity, "idempotency-response-not-retained", false)
		if fmt.Sprint(p["original_status"]) != strconv.Itoa(status) || p["idempotency_key"] != key {
			t.Errorf("%s: %s", path, a.body)
		}
	}
}

// C24: an answer that is too large is neither truncated nor a reason to execute
// the request again.
func TestContract_Row51_C24_LargeAnswersReachTheirClientAndAreNotKept(t *testing.T) {
	onProxy(t, "", "", answersOfAllSizes(&doors{}), func(t *testing.T, g *gateway, u *upstream) {
		for path, size := range map[string]int{"/v1/over": responseCap + 1, "/v1/declared": 2 * responseCap} {
			key := rand.Text()
			a := g.do(http.MethodPost, path, "{}", jsonType, "Idempotency-Key: "+key).want(t, http.StatusCreated, "Location: /v1/things/1").keyed(t, key, false)
			if len(a.body) != size {
				t.Errorf("%s: %d bytes, want %d", path, len(a.body), size)
			}
			g.notRetained(t, path, key, http.StatusCreated)
			u.ran(t, key, 1)
		}
		if n := g.measured("sekali_keyed_runs_total", `outcome="not_retained"`); n != 2 {
			t.Errorf("%v runs counted as not retained", n)
		}
		for _, path := range []string{"/v1/exact", "/v1/chunked"} { // row 52: chunks alone make no stream
			key := rand.Text()
			first := g.do(http.MethodPost, path, "{}", jsonType, "Idempotency-Key: "+key).want(t, http.StatusOK).keyed(t, key, false)
			g.do(http.MethodPost, path, "{}", jsonType, "Idempotency-Key: "+key).isReplayOf(t, key, first)
			u.ran(t, key, 1)
		}
	})
}

func TestContract_Row52_C25_StreamsAndUpgradesPassAndAreNotKept(t *testing.T) {
	var held doors
	onProxy(t, "", "", answersOfAllSizes(&held), func(t *testing.T, g *gateway, u *upstream) {
		const head = "POST /v1/%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: %s\r\nContent-Length: 2\r\n%s\r\n{}"
		key, conn := rand.Text(), g.dial(t)
		fmt.Fprintf(conn, head, "events", key, "")
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		events := bufio.NewReader(response.Body)
		first, err := events.ReadString('\n') // it comes while the second one is held back
		if err != nil || first != "data: 1\n" || response.Header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("%q %v %v", first, response.Header, err)
		}
		close(held.of(key))
		if rest, err := io.ReadAll(events); err != nil || string(rest) != "\ndata: 2\n\n" {
			t.Errorf("%q %v", rest, err)
		}
		g.notRetained(t, "/v1/events", key, http.StatusOK)
		u.ran(t, key, 1)

		key, conn = rand.Text(), g.dial(t)
		fmt.Fprintf(conn, head, "upgrade", key, "Connection: Upgrade\r\nUpgrade: echo\r\n")
		reader := bufio.NewReader(conn)
		response, err = http.ReadResponse(reader, nil)
		if err != nil || response.StatusCode != http.StatusSwitchingProtocols || response.Header.Get("Upgrade") != "echo" {
			t.Fatalf("%v %v", response, err)
		}
		defer response.Body.Close()
		fmt.Fprint(conn, "hello\n")
		if line, err := reader.ReadString('\n'); err != nil || line != "echo hello\n" {
			t.Errorf("%q %v", line, err)
		}
		_ = conn.Close()
		g.settled(t, "/v1/upgrade", key)
		g.notRetained(t, "/v1/upgrade", key, http.StatusSwitchingProtocols)
		u.ran(t, key, 1)
	})
}

// settled waits until the key's request is under way no more.
func (g *gateway) settled(t testing.TB, path, key string) {
	t.Helper()
	for range 10 {
		if g.do(http.MethodPost, path, "{}", jsonType, "Idempotency-Key: "+key, "Prefer: wait=5").StatusCode != http.StatusConflict {
			return
		}
	}
	t.Fatalf("%s is still under way", key)
}

// What an upstream may say in its headers: what a replay repeats, and what it
// must not.
var (
	replayed = http.Header{
		"Content-Type": {"application/vnd.charge+json;v=2"}, "Content-Language": {"id"}, "Content-Disposition": {`attachment; filename="a.json"`},
		"Content-Location": {"/v1/charges/9"}, "Location": {"/v1/charges/9"}, "Etag": {`"abc"`}, "Last-Modified": {"Tue, 01 Sep 2026 10:00:00 GMT"},
		"Link": {`</a>; rel="next"`, `</b>; rel="prev"`},
	}
	notReplayed = http.Header{
		"Set-Cookie": {"session=1", "csrf=2"}, "Set-Cookie2": {"x=1"}, "Authorization": {"Bearer zz-22"}, "Www-Authenticate": {"Basic"},
		"Proxy-Status": {"zz-22"}, "Server": {"charges/1.0"}, "Ratelimit-Limit": {"10"}, "Ratelimit": {`"a";r=1`}, "X-Ratelimit-Remaining": {"9"},
		"Retry-After": {"77"}, "Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "Tracestate": {"a=1"},
		"Access-Control-Allow-Origin": {"https://evil.example"}, "Access-Control-Expose-Headers": {"X-Custom"}, "X-Custom": {"zz-22"},
		"Job-Status": {"succeeded"}, "Strict-Transport-Security": {"max-age=1"},
	}
	// What an upstream must not say in the gateway's place, ever.
	forged = http.Header{
		"Idempotent-Replayed": {"true"}, "Idempotency-Key": {`"forged"`}, "Idempotency-Expires": {"2000-01-01T00:00:00Z"}, "Idempotency-Status": {"forged"},
		"X-Request-Id": {"forged"}, "Cache-Control": {"max-age=3600"}, "Connection": {"X-Hop"}, "X-Hop": {"1"}, "Keep-Alive": {"timeout=5"},
	}
	ofTheAnswer = []string{"Cache-Control", "Content-Length", "Date", "Idempotency-Expires", "Idempotency-Key", "Idempotent-Replayed", "Vary", "X-Content-Type-Options", "X-Request-Id"}
)

func TestContract_Row53_Row54_C22_C23_HeadersOfAReplay(t *testing.T) {
	chatty := func(w http.ResponseWriter, _ *http.Request, _ int) {
		for _, headers := range []http.Header{replayed, notReplayed, forged, {"Vary": {"Origin"}, "Date": {"Tue, 01 Sep 2026 10:00:00 GMT"}}} {
			maps.Copy(w.Header(), headers)
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"id":9}`)
	}
	onProxy(t, "", "", chatty, func(t *testing.T, g *gateway, u *upstream) {
		key := rand.Text()
		first := g.charge(key, "Accept-Encoding: identity").want(t, http.StatusCreated).keyed(t, key, false)
		for _, headers := range []http.Header{replayed, notReplayed} {
			for name, values := range headers {
				if !slices.Equal(first.Header[name], values) {
					t.Errorf("the first answer: %s %q, want %q", name, first.Header[name], values)
				}
			}
		}
		again := g.charge(key, "Accept-Encoding: identity").want(t, http.StatusCreated, "Content-Length: 8").keyed(t, key, true)
		for name, values := range replayed {
			if !slices.Equal(again.Header[name], values) {
				t.Errorf("the replay: %s %q, want %q", name, again.Header[name], values)
			}
		}
		want := slices.Sorted(maps.Keys(replayed))
		want = append(want, ofTheAnswer...)
		slices.Sort(want)
		if got := slices.Sorted(maps.Keys(again.Header)); !slices.Equal(got, want) {
			t.Errorf("headers of the replay:\n%q, want\n%q", got, want)
		}
		for i, a := range []answer{first, again} {
			for name, values := range forged {
				if slices.Equal(a.Header[name], values) && (name != "Idempotent-Replayed" || i == 0) {
					t.Errorf("the upstream said %s: %q for the gateway", name, values)
				}
			}
		}
		if vary := strings.Join(again.Header.Values("Vary"), ","); strings.Contains(vary, "Origin") {
			t.Errorf("Vary of the replay: %q", vary)
		}
		if first.Header.Get("X-Request-Id") == again.Header.Get("X-Request-Id") {
			t.Error("two answers have one request id")
		}
		u.ran(t, key, 1)
	})
}

func zipped(text string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = io.WriteString(w, text)
	_ = w.Close()
	return b.Bytes()
}

func unzipped(t testing.TB, body []byte) string {
	t.Helper()
	r, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestContract_Row55_CodingsDoNotTouchWhatIsStored(t *testing.T) {
	text := strings.Repeat(`{"a":"a line of text"},`, 500)
	coded := zipped(text)
	coding := func(w http.ResponseWriter, r *http.Request, _ int) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Etag", `"v1"`)
		if r.URL.Path == "/v1/coded" { // although nobody asked for it
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(coded)
			return
		}
		_, _ = io.WriteString(w, text)
	}
	onProxy(t, "", "", coding, func(t *testing.T, g *gateway, u *upstream) {
		call := func(path, key, accepts string) answer {
			return g.do(http.MethodPost, path, "{}", jsonType, "Idempotency-Key: "+key, "Accept-Encoding: "+accepts).want(t, http.StatusOK)
		}
		plain := rand.Text()
		if first := call("/v1/plain", plain, "gzip").want(t, http.StatusOK, "Content-Encoding: gzip"); unzipped(t, first.body) != text {
			t.Errorf("the first answer has %d bytes", len(first.body))
		}
		if again := call("/v1/plain", plain, "identity").want(t, http.StatusOK, "Content-Encoding:", `Etag: "v1"`).keyed(t, plain, true); string(again.body) != text {
			t.Errorf("the replay has %d bytes", len(again.body))
		}
		if again := call("/v1/plain", plain, "gzip").want(t, http.StatusOK, "Content-Encoding: gzip").keyed(t, plain, true); unzipped(t, again.body) != text {
			t.Errorf("the coded replay has %d bytes", len(again.body))
		}
		if n := count(t, g.beside(t), `select length(response_body) from idempotency_keys where key = $1`, plain); n != len(text) {
			t.Errorf("%d bytes are stored, of %d", n, len(text))
		}

		key := rand.Text()
		for _, replay := range []bool{false, true} {
			if a := call("/v1/coded", key, "gzip").want(t, http.StatusOK, "Content-Encoding: gzip", `Etag: "v1"`).keyed(t, key, replay); !bytes.Equal(a.body, coded) {
				t.Errorf("replay %t: %d bytes, want those of the upstream", replay, len(a.body))
			}
		}
		for _, accepts := range []string{"identity", "gzip;q=0, *;q=0"} {
			if a := call("/v1/coded", key, accepts).want(t, http.StatusOK, "Content-Encoding:", `Etag: W/"v1"`).keyed(t, key, true); string(a.body) != text {
				t.Errorf("%s: %d bytes, want %d", accepts, len(a.body), len(text))
			}
		}
		u.ran(t, plain, 1)
		u.ran(t, key, 1)
	})
}

// fingerprintV1 is contract row 25 written down once more: a version, 16 bytes
// over method, path and query, 32 bytes over media type and body, each value
// after its length.
func fingerprintV1(target, content []string) []byte {
	sum := func(values []string) []byte {
		h := sha256.New()
		for _, value := range values {
			_ = binary.Write(h, binary.BigEndian, uint64(len(value)))
			_, _ = io.WriteString(h, value)
		}
		return h.Sum(nil)
	}
	return slices.Concat([]byte{1}, sum(target)[:16], sum(content))
}

// A stored fingerprint outlives the program that made it: the form of version 1
// must never change, and what cannot be compared is never executed.
func TestContract_Row60_Row61_C15_RecordsOfOtherVersions(t *testing.T) {
	onProxy(t, "", "", charged, func(t *testing.T, g *gateway, u *upstream) {
		key, db := rand.Text(), g.beside(t)
		first := g.charge(key).want(t, http.StatusCreated)
		stored := func() []byte {
			var b []byte
			if err := db.QueryRow(`select fingerprint from idempotency_keys where key = $1`, key).Scan(&b); err != nil {
				t.Fatal(err)
			}
			return b
		}
		sound := fingerprintV1([]string{"POST", "/v1/charges", "x", "1"}, []string{"application/json", `{"amount":1}`})
		if !bytes.Equal(stored(), sound) {
			t.Errorf("Row61: the fingerprint of version 1 has changed:\n%x\n%x", stored(), sound)
		}
		g.submit("job", echoBody).want(t, http.StatusAccepted)
		g.finished("job")
		for name, damaged := range map[string][]byte{"another version": append([]byte{9}, sound[1:]...), "cut off": sound[:20], "nothing": {}} {
			change(t, db, `update idempotency_keys set fingerprint = $1`, damaged)
			p := g.charge(key).refused(t, http.StatusInternalServerError, "idempotency-record-corrupt", false)
			g.submit("job", echoBody).refused(t, http.StatusInternalServerError, "idempotency-record-corrupt", false)
			if p["idempotency_key"] != key || !bytes.Equal(stored(), damaged) {
				t.Errorf("%s: %v, stored is %x", name, p, stored())
			}
		}
		change(t, db, `update idempotency_keys set fingerprint = $1, response_headers = $2 where key = $3`, sound, []byte("{"), key)
		g.charge(key).refused(t, http.StatusInternalServerError, "idempotency-record-corrupt", false)
		lines := g.logLines("record of a key is corrupt: the request is refused")
		if len(lines) != 4 || lines[0]["level"] != "ERROR" {
			t.Errorf("the log tells nobody: %v", lines)
		}
		change(t, db, `update idempotency_keys set response_headers = $1 where key = $2`, []byte(`{"Content-Type":["application/json; charset=utf-8"],"Location":["/v1/charges/1"]}`), key)
		g.charge(key).isReplayOf(t, key, first) // once somebody has mended it
		u.ran(t, key, 1)
	})
}
