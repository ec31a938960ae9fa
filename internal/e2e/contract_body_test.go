package e2e_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/sekali/sekali/internal/testenv"
)

// invalid fails unless the answer is row 69, naming the pointer, with what is
// allowed there.
func (a answer) invalid(t testing.TB, pointer string, allowed ...string) {
	t.Helper()
	p := a.refused(t, http.StatusBadRequest, "validation-failed", false)
	list, _ := p["errors"].([]any)
	for _, entry := range list {
		e, _ := entry.(map[string]any)
		if e["pointer"] != pointer {
			continue
		}
		detail, _ := e["detail"].(string)
		if rule, _ := e["rule"].(string); rule == "" || detail == "" {
			t.Errorf("error %v", e)
		}
		for _, text := range allowed {
			if !strings.Contains(detail, text) {
				t.Errorf("%s: detail %q does not name %q", pointer, detail, text)
			}
		}
		return
	}
	t.Errorf("no error at %q: %s", pointer, a.body)
}

// ranges of a submission's members: values on both sides of each bound.
var ranges = []struct {
	member    string
	good, bad []string
	allowed   []string
}{
	{"max_attempts", []string{"1", "1000", "null"}, []string{"0", "-1", "1001", "9223372036854775808", "1.5", `"1"`, "true", "[]"}, []string{"1", "1000"}},
	{"timeout_seconds", []string{"1", "86400", "null"}, []string{"0", "-1", "86401", "1e99", `"1s"`}, []string{"1", "86400"}},
	{"delay_seconds", []string{"0", "31536000", "null"}, []string{"-1", "31536001", "99999999999999999999", "0.5", "{}"}, []string{"0", "31536000"}},
	{"priority", []string{"-100", "0", "100", "null"}, []string{"-101", "101", "-9223372036854775809", "false", `""`}, []string{"-100", "100"}},
	{
		"business_key",
		[]string{`"b"`, `"` + strings.Repeat("b", 255) + `"`, `" ~"`, `"\u0041"`, "null"},
		[]string{`""`, `"` + strings.Repeat("b", 256) + `"`, `"\u001f"`, `"\u007f"`, `"é"`, `"a\u0000"`, "7", "[]"},
		[]string{"1", "255", "printable"},
	},
	{"type", []string{`"echo"`}, []string{`""`, `null`, `7`, `["echo"]`, `"` + strings.Repeat("t", 256) + `"`}, []string{"255"}},
}

func TestContract_SectionG_Row69_RangesOfASubmission_BR35(t *testing.T) {
	onGateway(t, "dispatcher: {slots: 0}", func(t *testing.T, g *gateway) {
		submission := func(member, value string) string {
			if member == "type" {
				return `{"type":` + value + `}`
			}
			return fmt.Sprintf(`{"type":"echo",%q:%s}`, member, value)
		}
		n := 0
		for _, r := range ranges {
			for _, value := range r.good {
				n++
				doc := g.submit(fmt.Sprintf("g-%d", n), submission(r.member, value)).want(t, http.StatusAccepted).json(t)
				if got, ok := doc[r.member]; ok && value != "null" && r.member != "business_key" && fmt.Sprint(got) != strings.Trim(value, `"`) {
					t.Errorf("%s %s became %v", r.member, value, got)
				}
			}
			for _, value := range r.bad {
				n++
				key := fmt.Sprintf("g-%d", n)
				a := g.submit(key, submission(r.member, value))
				a.invalid(t, "/"+r.member, r.allowed...)
				if given := value != "null"; given && strings.Contains(string(a.body), `"required"`) {
					t.Errorf("BR35: %s is there and called absent: %s", value, a.body)
				}
				g.keyIsFree(t, key)
			}
		}
		everythingWrong(t, g)
	})
}

// everythingWrong: one answer lists all that is wrong, and nothing else.
func everythingWrong(t *testing.T, g *gateway) {
	t.Helper()
	const body = `{"priority":101,"max_attempts":0,"business_key":"","delay_seconds":-1,"run_at":"soon","timeout_seconds":86401,"dry_run":false}`
	a := g.submit("all", body)
	p := a.refused(t, http.StatusBadRequest, "validation-failed", false)
	var pointers []string
	for _, e := range p["errors"].([]any) {
		pointers = append(pointers, e.(map[string]any)["pointer"].(string))
	}
	want := []string{"/business_key", "/delay_seconds", "/dry_run", "/max_attempts", "/priority", "/run_at", "/timeout_seconds", "/type"}
	if slices.Sort(pointers); !slices.Equal(pointers, want) {
		t.Errorf("errors at %v, want %v", pointers, want)
	}
	g.keyIsFree(t, "all")
}

func TestContract_SectionG_TimesOfASubmission(t *testing.T) {
	onGateway(t, "dispatcher: {slots: 0}", func(t *testing.T, g *gateway) {
		at := func(d time.Duration) string { return time.Now().UTC().Add(d).Format(time.RFC3339Nano) }
		year := time.Until(time.Now().AddDate(1, 0, 0))
		future := time.Now().Add(time.Hour).In(time.FixedZone("", -9*3600-30*60)).Truncate(time.Second)
		n := 0
		key := func() string { n++; return fmt.Sprintf("t-%d", n) }
		for _, past := range []string{at(-2 * time.Second), at(-time.Hour), "0001-01-01T00:00:00Z", "1969-12-31T23:59:59.999999999+14:00"} {
			doc := g.submit(key(), fmt.Sprintf(`{"type":"echo","run_at":%q}`, past)).want(t, http.StatusAccepted, "Job-Status: pending").json(t)
			if doc["run_at"] != doc["created_at"] {
				t.Errorf("%s: the past means now: %v", past, doc)
			}
		}
		for _, ahead := range []string{at(time.Minute), at(year - time.Minute), future.Format(time.RFC3339)} {
			doc := g.submit(key(), fmt.Sprintf(`{"type":"echo","run_at":%q}`, ahead)).want(t, http.StatusAccepted, "Job-Status: scheduled").json(t)
			want, _ := time.Parse(time.RFC3339, ahead)
			text, _ := doc["run_at"].(string)
			got, err := time.Parse(time.RFC3339, text)
			if err != nil || !strings.HasSuffix(text, "Z") || !got.Equal(want.Truncate(time.Millisecond)) {
				t.Errorf("run_at %s became %s", ahead, text)
			}
		}
		for _, bad := range []string{
			strconv.Quote(at(year + time.Hour)), `"9999-12-31T23:59:59Z"`, `"10000-01-01T00:00:00Z"`, `"2030-13-01T00:00:00Z"`, `"2030-02-30T00:00:00Z"`,
			`"2030-01-01"`, `"2030-01-01T00:00:00"`, `"2030-01-01 00:00:00Z"`, `"tomorrow"`, `""`, `0`, `1893456000`, `[]`, `"\u0000"`,
		} {
			k := key()
			g.submit(k, `{"type":"echo","run_at":`+bad+`}`).invalid(t, "/run_at", "year")
			g.keyIsFree(t, k)
		}
		doc := g.submit(key(), `{"type":"echo","delay_seconds":90,"run_at":null}`).want(t, http.StatusAccepted, "Job-Status: scheduled").json(t)
		created, _ := time.Parse(time.RFC3339, fmt.Sprint(doc["created_at"]))
		if runs, _ := time.Parse(time.RFC3339, fmt.Sprint(doc["run_at"])); runs.Sub(created) != 90*time.Second {
			t.Errorf("delay of 90 s: %v", doc)
		}
		g.submit(key(), `{"type":"echo","delay_seconds":0,"run_at":"2020-01-01T00:00:00Z"}`).invalid(t, "/delay_seconds", "run_at")
	})
}

// notAccepted are bodies that are no submission, by what is wrong with them.
var notAccepted = []struct{ name, body, pointer string }{
	{"BR33 second value", `{"type":"echo","payload":{}} {"type":"slow"}`, ""},
	{"BR33 garbage behind", `{"type":"echo"}garbage`, ""},
	{"BR33 NUL behind", "{\"type\":\"echo\"}\x00", ""},
	{"BR33 comma behind", `{"type":"echo"},`, ""},
	{"BR33 empty", ``, ""},
	{"BR33 blanks", " \n", ""},
	{"BR33 null", `null`, ""},
	{"BR33 array", `[]`, ""},
	{"BR33 array of one", `[{"type":"echo"}]`, ""},
	{"BR33 string", `"echo"`, ""},
	{"BR33 byte order mark", "\ufeff" + `{"type":"echo"}`, ""},
	{"BR33 UTF-16", string(utf16Bytes(`{"type":"echo"}`)), ""},
	{"BR33 broken off", `{"type":"echo","payload":{"a":`, "/payload/a"},
	{"BR33 no member name", `{"type":"echo",}`, ""},
	{"BR33 NaN", `{"type":"echo","payload":NaN}`, "/payload"},
	{"BR33 comment", `{"type":"echo"/**/}`, ""},
	{"BR32 type twice", `{"type":"echo","type":"slow","payload":{}}`, "/type"},
	{"BR32 type twice, escaped", `{"type":"echo","t\u0079pe":"slow"}`, "/type"},
	{"BR32 twice in the payload", `{"type":"echo","payload":{"a":1,"a":2}}`, "/payload/a"},
	{"BR32 twice deep in the payload", `{"type":"echo","payload":[{"b":{"a":1,"\u0061":1}}]}`, "/payload/0/b/a"},
	{"BR32 case twin", `{"type":"echo","Type":"slow"}`, "/Type"},
	{"BR32 case twin alone", `{"TYPE":"echo"}`, "/TYPE"},
	{"BR31 high surrogate", `{"type":"echo","payload":{"s":"\ud800"}}`, "/payload/s"},
	{"BR31 low surrogate", `{"type":"echo","payload":{"s":"\udc00x"}}`, "/payload/s"},
	{"BR31 surrogate in a name", `{"type":"echo","payload":{"\ud800":1}}`, "/payload"},
	{"BR31 bytes that are no UTF-8", "{\"type\":\"echo\",\"payload\":\"\xff\"}", "/payload"},
	{"BR31 surrogate in UTF-8", "{\"type\":\"echo\",\"payload\":\"\xed\xa0\x80\"}", "/payload"},
	{"SectionG 65 deep", `{"type":"echo","payload":` + strings.Repeat("[", 64) + strings.Repeat("]", 64) + `}`, "/payload" + strings.Repeat("/0", 63)},
	{"SectionG 100000 deep", `{"type":"echo","payload":` + strings.Repeat(`{"a":`, 100_000), "/payload" + strings.Repeat("/a", 63)},
	{"unknown member", `{"type":"echo","delay_second":1}`, "/delay_second"},
}

func utf16Bytes(s string) []byte {
	b := []byte{0xff, 0xfe}
	for _, u := range utf16.Encode([]rune(s)) {
		b = append(b, byte(u), byte(u>>8))
	}
	return b
}

func TestContract_Row69_Row71_BR19_BR31_BR32_BR33_WhatIsNoSubmission(t *testing.T) {
	onGateway(t, "job_types: {private-name: {executor: echo}}", func(t *testing.T, g *gateway) {
		for i, c := range notAccepted {
			t.Run(c.name, func(t *testing.T) {
				key := fmt.Sprintf("no-%d", i)
				g.submit(key, c.body).keyed(t, key, false).invalid(t, c.pointer)
				g.keyIsFree(t, key)
			})
		}
		for i, name := range []string{"nope", "ECHO", `o\u0000k`, "echo ", "private", "a|b", strings.Repeat("t", 255)} {
			key := fmt.Sprintf("type-%d", i)
			a := g.submit(key, `{"type":"`+name+`"}`).keyed(t, key, false)
			a.refused(t, http.StatusBadRequest, "unknown-job-type", false)
			if strings.Contains(string(a.body), "private-name") || strings.Contains(string(a.body), "echo") {
				t.Errorf("Row71: the answer lists types: %s", a.body)
			}
			g.keyIsFree(t, key)
		}
		for i, query := range []string{"?a=%zz", "?%", "?a;b=1"} {
			key := fmt.Sprintf("query-%d", i)
			g.post("/jobs"+query, echoBody, "Idempotency-Key: "+key).refused(t, http.StatusBadRequest, "validation-failed", false)
			g.keyIsFree(t, key)
		}
		if found := g.logLines("handler panicked"); len(found) > 0 {
			t.Errorf("a panic: %v", found)
		}
	})
}

func TestFailure_BR29_BR31_BR33_BR35_PayloadsComeBackByteForByte(t *testing.T) {
	onGateway(t, "", func(t *testing.T, g *gateway) {
		for i, payload := range []string{
			`null`, `0`, `false`, `""`, `{}`, `[]`, `-0`, `1.0e+2`, `{"n":123456789012345678901234567890.10}`,
			`{"s":"a\u0000b"}`, `{"s":"\\u0000"}`, `{"s":"\ud83d\ude00 😀 \/ <&> ` + "\u2028" + `"}`, `{ "b" : [ 1 , 2 ] ,  "a":"\u00e9é" }`, `{"":{"":""}}`,
			`1e999999`, `-0.0`, strings.Repeat("9", 5000), strings.Repeat("[", 63) + strings.Repeat("]", 63),
			`"` + strings.Repeat("x", 1<<20-len("\r\n {\"payload\":\"\",\"type\":\"echo\"}\n")) + `"`, // a body of exactly the limit
		} {
			key := fmt.Sprintf("p-%d", i)
			body := "\r\n " + `{"payload":` + payload + `,"type":"echo"}` + "\n"
			a := g.submit(key, body, "Prefer: wait=30").want(t, http.StatusOK, "Job-Status: succeeded")
			if want := `"payload":` + payload + `,"result":` + payload + `,`; !strings.Contains(string(a.body), want) {
				t.Errorf("%.100s: %.500s", payload, a.body)
			}
			g.submit(key, body).want(t, http.StatusAccepted, "Idempotent-Replayed: true")
		}
		// Absent and null say the same and are two requests all the same.
		a := g.submit("absent", `{"type":"echo"}`, "Prefer: wait=30").want(t, http.StatusOK)
		if !strings.Contains(string(a.body), `"payload":null`) {
			t.Errorf("absent: %s", a.body)
		}
	})
}

// sized is a submission of exactly so many bytes.
func sized(bytes int) string {
	const frame = `{"type":"echo","delay_seconds":9,"payload":""}`
	return strings.Replace(frame, `""`, `"`+strings.Repeat("x", bytes-len(frame))+`"`, 1)
}

func chunked(key, chunks string) string {
	return "POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: " + key + "\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks
}

func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

func TestContract_Row21_Row22_Row23_BR22_C26_BodiesThatAreNotRead(t *testing.T) {
	onGateway(t, "limits: {body: 64KiB}", func(t *testing.T, g *gateway) {
		slow := slowBody(t, g, announced, "slow")
		const elsewhere = "POST /nothing HTTP/1.1\r\nHost: x\r\nIdempotency-Key: %s\r\nContent-Length: 100\r\n\r\nx"
		unread := []<-chan answer{slowBody(t, g, elsewhere, "n"), slowBody(t, g, strings.Replace(elsewhere, "/nothing", "/jobs", 1), "n")}
		const limit = 64 << 10
		tooLarge := func(key string, a answer) {
			t.Helper()
			if p := a.refused(t, http.StatusRequestEntityTooLarge, "request-too-large", false); fmt.Sprint(p["limit"]) != strconv.Itoa(limit) {
				t.Errorf("limit %v", p["limit"])
			}
			g.keyIsFree(t, key)
		}
		g.submit("fits", sized(limit)).want(t, http.StatusAccepted)
		tooLarge("large", g.submit("large", sized(limit+1)))
		g.raw(chunked("fits-2", chunk(sized(limit))+"0\r\n\r\n")).want(t, http.StatusAccepted)
		tooLarge("chunks", g.raw(chunked("chunks", chunk(sized(limit+1))+"0\r\n\r\n")))
		tooLarge("expect", g.raw("POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: expect\r\nExpect: 100-continue\r\nContent-Length: 65537\r\n\r\n"))
		tooLarge("endless", endlessBody(t, g, "endless"))
		for range 20 { // the answer gets through, although the client goes on sending for a while
			g.submit("far", sized(20*limit)).refused(t, http.StatusRequestEntityTooLarge, "request-too-large", false)
		}

		t.Run("Row22 broken off", func(t *testing.T) {
			g.raw(chunked("broken", "zz\r\n")).refused(t, http.StatusBadRequest, "body-unreadable", false)
			g.keyIsFree(t, "broken")
			brokenOff(t, g, "short").refused(t, http.StatusBadRequest, "body-unreadable", false)
			g.keyIsFree(t, "short")
			abort(t, g, "aborted")
			g.keyIsFree(t, "aborted")
		})
		t.Run("Row23 media types", func(t *testing.T) { mediaTypes(t, g) })
		g.raw("POST /jobs HTTP/1.1\r\nHost: x\r\nIdempotency-Key: none\r\nContent-Length: 0\r\n\r\n").invalid(t, "")

		fromSlow(t, slow).refused(t, http.StatusRequestTimeout, "request-timeout", true)
		g.keyIsFree(t, "slow")
		// Who is refused before the body is read must not have to send it first.
		fromSlow(t, unread[0]).refused(t, http.StatusNotFound, "route-not-found", false)
		fromSlow(t, unread[1]).refused(t, http.StatusUnsupportedMediaType, "unsupported-media-type", false)
	})
}

func mediaTypes(t *testing.T, g *gateway) {
	for _, headers := range [][]string{
		{},
		{"Content-Type: "},
		{"Content-Type: text/plain"},
		{"Content-Type: application/x-www-form-urlencoded"},
		{"Content-Type: application/jsonx"},
		{"Content-Type: application/problem+json"},
		{"Content-Type: application/json; charset=utf-16"},
		{"Content-Type: application/json;;"},
		{"Content-Type: json"},
		{"Content-Type: application/json, text/plain"},
		{jsonType, "Content-Type: text/plain"},
		{jsonType, "Content-Encoding: gzip"},
		{jsonType, "Content-Encoding: gzip, identity"},
	} {
		a := g.do(http.MethodPost, "/jobs", echoBody, append([]string{"Idempotency-Key: media"}, headers...)...)
		p := a.refused(t, http.StatusUnsupportedMediaType, "unsupported-media-type", false)
		detail, _ := p["detail"].(string)
		if coded := len(headers) == 2 && strings.Contains(headers[1], "gzip"); !coded && !strings.Contains(detail, "curl --json") {
			t.Errorf("%v: detail %q", headers, detail)
		}
	}
	g.keyIsFree(t, "media")
	for i, header := range []string{"Content-Type: Application/JSON", `Content-Type: application/json; charset="UTF-8"`, "Content-Type: application/json;v=1"} {
		g.do(http.MethodPost, "/jobs", echoBody, header, fmt.Sprintf("Idempotency-Key: media-%d", i), "Content-Encoding: identity").want(t, http.StatusAccepted)
	}
}

func (g *gateway) dial(t testing.TB) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(60 * time.Second))
	return conn.(*net.TCPConn)
}

func receive(conn net.Conn) (answer, error) {
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return answer{response, body}, err
}

const announced = "POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: %s\r\nContent-Length: 100\r\n\r\n{\"type\":"

// slowBody sends part of a body, then nothing.
func slowBody(t testing.TB, g *gateway, request, key string) <-chan answer {
	t.Helper()
	conn, answers := g.dial(t), make(chan answer, 1)
	fmt.Fprintf(conn, request, key)
	go func() {
		a, err := receive(conn)
		if err != nil {
			a = answer{}
		}
		answers <- a
	}()
	return answers
}

func fromSlow(t testing.TB, c <-chan answer) answer {
	t.Helper()
	a := <-c
	if a.Response == nil {
		t.Fatal("a slow client got no answer")
	}
	return a
}

// brokenOff sends part of a body and says that this was all.
func brokenOff(t testing.TB, g *gateway, key string) answer {
	t.Helper()
	conn := g.dial(t)
	fmt.Fprintf(conn, announced, key)
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	a, err := receive(conn)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// abort sends part of a body and resets the connection.
func abort(t testing.TB, g *gateway, key string) {
	t.Helper()
	conn := g.dial(t)
	fmt.Fprintf(conn, announced, key)
	before := len(g.logLines("request answered"))
	if err := errors.Join(conn.SetLinger(0), conn.Close()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 0, "the gateway notices", func() bool { return len(g.logLines("request answered")) > before })
}

// endlessBody sends chunks for as long as the gateway takes them, and fails if
// it takes far more than the limit.
func endlessBody(t testing.TB, g *gateway, key string) answer {
	t.Helper()
	conn := g.dial(t)
	if _, err := io.WriteString(conn, chunked(key, chunk(`{"type":"echo","payload":"`))); err != nil {
		t.Fatal(err)
	}
	answers := make(chan answer, 1)
	go func() {
		a, _ := receive(conn)
		answers <- a
	}()
	const most = 64 << 20 // far beyond what the buffers of two sockets hold
	part, sent := chunk(strings.Repeat("x", 1<<20)), 0
	for sent < most {
		n, err := io.WriteString(conn, part)
		if sent += n; err != nil {
			break
		}
	}
	if sent >= most {
		t.Errorf("the gateway read %d bytes", sent)
	}
	a := <-answers
	if a.Response == nil {
		t.Fatal("no answer to an endless body")
	}
	return a
}

func TestFailure_BR19_BR22_ADatabaseThatWasAway(t *testing.T) {
	t.Parallel()
	server, err := testenv.StartPostgres()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	receives := newSink(t)
	g := start(t, server.URL(), receives.types(map[string]string{"ok": "/ok"}))
	const body = `{"type":"ok"}`
	g.submit("before", body).want(t, http.StatusAccepted)
	g.finished("before")
	if err := server.Shutdown(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		g.submit("br19", body).keyed(t, "br19", false).refused(t, http.StatusServiceUnavailable, "idempotency-store-unavailable", true)
	}
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, "the same key is accepted", func() bool {
		return g.submit("br19", body).StatusCode == http.StatusAccepted
	})
	if j := g.finished("br19"); j["status"] != "succeeded" || len(receives.of("br19")) != 1 {
		t.Errorf("job %v, %d calls", j, len(receives.of("br19")))
	}
}
