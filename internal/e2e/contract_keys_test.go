package e2e_test

import (
	"bytes"
	"database/sql"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

const echoBody = `{"type":"echo","payload":{"a":1}}`

// post submits with the lines of the key's header as they are.
func (g *gateway) post(target, body string, headers ...string) answer {
	g.t.Helper()
	return g.do(http.MethodPost, target, body, append([]string{jsonType}, headers...)...)
}

// beside opens a connection of its own to the gateway's database, for what
// another program might do there, and for looking at what is stored.
func (g *gateway) beside(t testing.TB) *sql.DB {
	t.Helper()
	return beside(t, g.database)
}

// stored counts the records of the key.
func stored(t testing.TB, db *sql.DB, key string) (records int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), `select count(*) from idempotency_keys where key = $1`, key).Scan(&records); err != nil {
		t.Fatal(err)
	}
	return records
}

var instanceForm = regexp.MustCompile(`^urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

const (
	docs    = "https://sekali.github.io/sekali"
	keyLink = "<" + docs + `/idempotency>; rel="describedby"`
)

// refused is a.problem with everything that all problems share.
func (a answer) refused(t testing.TB, status int, code string, retryable bool) map[string]any {
	t.Helper()
	p := a.problem(t, status, code)
	if p["type"] != docs+"/problems/"+code {
		t.Errorf("type %v", p["type"])
	}
	if fmt.Sprint(p["status"]) != strconv.Itoa(status) || p["retryable"] != retryable {
		t.Errorf("status %v, retryable %v: %s", p["status"], p["retryable"], a.body)
	}
	if instance, _ := p["instance"].(string); !instanceForm.MatchString(instance) {
		t.Errorf("instance %v", p["instance"])
	}
	for _, member := range []string{"title", "detail"} {
		if text, _ := p[member].(string); text == "" {
			t.Errorf("%s is empty: %s", member, a.body)
		}
	}
	if aboutKey := strings.HasPrefix(code, "idempotency-"); aboutKey != (a.Header.Get("Link") == keyLink) {
		t.Errorf("Link %q on %s", a.Header.Values("Link"), code)
	}
	a.pacedAlike(t, p)
	return p
}

// pacedAlike fails unless the header and the member say the same, or neither
// says anything.
func (a answer) pacedAlike(t testing.TB, p map[string]any) {
	t.Helper()
	after, inHeader := a.Header["Retry-After"]
	ms, inBody := p["retry_after_ms"]
	if inHeader != inBody {
		t.Fatalf("Retry-After %q but retry_after_ms %v", after, ms)
	}
	if !inHeader {
		return
	}
	seconds, err := strconv.Atoi(after[0])
	n, errMS := strconv.Atoi(fmt.Sprint(ms))
	if err != nil || errMS != nil || seconds < 1 || (n+999)/1000 != seconds {
		t.Errorf("Retry-After %q, retry_after_ms %v", after, ms)
	}
}

// keyed fails unless the answer has what every keyed response has.
func (a answer) keyed(t testing.TB, key string, replayed bool) answer {
	t.Helper()
	quoted := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
	if vary := a.Header.Values("Vary"); !slices.Contains(vary, "Prefer") {
		t.Errorf("Vary: %q", vary)
	}
	return a.want(t, a.StatusCode, "Idempotency-Key: "+quoted, fmt.Sprintf("Idempotent-Replayed: %t", replayed), "Cache-Control: no-store")
}

// spellings are header lines that name a key.
var spellings = []struct{ name, line, key string }{
	{"Row4 bare token", `abc`, `abc`},
	{"Row4 semicolon is an ordinary character of a bare key", `abd;v=1`, `abd;v=1`},
	{"Row4 single quote and slash", `it's/x`, `it's/x`},
	{"Row4 blanks around it are no part", " \tabe \t", `abe`},
	{"Row4 colon, percent, question mark", `a%2Fb?c=d#e:f`, `a%2Fb?c=d#e:f`},
	{"Row4 all other marks", "!#$%&'()*+-./:;<=>?@[]^_`{|}~", "!#$%&'()*+-./:;<=>?@[]^_`{|}~"},
	{"Row5 string", `"ab1"`, `ab1`},
	{"Row5 escaped quote", `"a\"b"`, `a"b`},
	{"Row5 escaped backslash", `"a\\b"`, `a\b`},
	{"Row5 escaped quote at the end", `"ab\""`, `ab"`},
	{"Row5 blank within and around", `" a b "`, ` a b `},
	{"Row6 one parameter", `"ab2";v=1`, `ab2`},
	{"Row6 parameters of each kind", `"ab3"; a=1;b="x,y;\"";c;d=?1;e=:Zm9v:;f=tok/en;*g=-1.5`, `ab3`},
	{"Row9 comma in quotes", `"a,b"`, `a,b`},
	{"Row9 semicolon in quotes", `"a;v=1"`, `a;v=1`},
	{"Row10 255 bytes", strings.Repeat("k", 255), strings.Repeat("k", 255)},
	{"Row10 255 bytes after decoding, 512 before", `"` + strings.Repeat(`\"`, 255) + `"`, strings.Repeat(`"`, 255)},
	{"Row11 one byte", `k`, `k`},
	{"Row12 first and last character that may stand bare", `!~`, `!~`},
	{"Row14 capitals", `Abc`, `Abc`},
	{"Row14 capitals all", `ABC`, `ABC`},
}

// misspellings are header lines that name no key.
var misspellings = []struct{ name, line, reason string }{
	{"Row3 empty", ``, "empty"},
	{"Row3 blanks alone", " \t ", "empty"},
	{"Row3 empty string", `""`, "empty"},
	{"Row3 empty string with a parameter", `"";v=1`, "empty"},
	{"Row7 unclosed", `"abc`, "syntax"},
	{"Row7 quote alone", `"`, "syntax"},
	{"Row7 closing quote is escaped", `"abc\"`, "syntax"},
	{"Row7 unknown escape", `"a\nb"`, "syntax"},
	{"Row7 bytes after the string", `"abc"def`, "syntax"},
	{"Row7 second string after the string", `"abc" "def"`, "syntax"},
	{"Row7 parameter without a name", `"abc";=1`, "syntax"},
	{"Row7 quote in a bare key", `a"b`, "syntax"},
	{"Row4 backslash in a bare key", `a\b`, "syntax"},
	{"Row9 comma in a bare key", `a,b`, "multiple"},
	{"Row9 comma at the end", `a,`, "multiple"},
	{"Row9 two strings", `"a", "b"`, "multiple"},
	{"Row9 string and bare key", `"a",b`, "multiple"},
	{"Row9 comma after parameters", `"a";v=1, "b"`, "multiple"},
	{"Row10 256 bytes", strings.Repeat("k", 256), "length"},
	{"Row10 256 bytes in quotes", `"` + strings.Repeat("k", 256) + `"`, "length"},
	{"Row10 256 bytes after decoding", `"` + strings.Repeat(`\\`, 256) + `"`, "length"},
	{"Row10 8 KiB", strings.Repeat("k", 8<<10), "length"},
	{"Row13 a path segment that no client keeps", `.`, "format"},
	{"Row13 another one", `".."`, "format"},
	{"Row12 blank in a bare key", `a b`, "charset"},
	{"Row12 tab in a bare key", "a\tb", "charset"},
	{"Row12 tab in quotes", "\"a\tb\"", "charset"},
	{"Row12 UTF-8 bare", "caf\xc3\xa9", "charset"},
	{"Row12 UTF-8 in quotes", "\"caf\xc3\xa9\"", "charset"},
	{"Row12 a byte that is no UTF-8", "\xff", "charset"},
}

func TestContract_Row1_Rows3to14_HowAKeyIsRead(t *testing.T) {
	onGateway(t, "", func(t *testing.T, g *gateway) {
		for _, c := range spellings {
			a := g.post("/jobs", echoBody, "Idempotency-Key: "+c.line).want(t, http.StatusAccepted).keyed(t, c.key, false)
			if a.json(t)["key"] != c.key {
				t.Errorf("%s: key %q, want %q", c.name, a.json(t)["key"], c.key)
			}
			if got := g.get(a.Header.Get("Location")).want(t, http.StatusOK).json(t); got["key"] != c.key {
				t.Errorf("%s: Location %q leads to %v", c.name, a.Header.Get("Location"), got["key"])
			}
		}
		for _, c := range misspellings {
			p := g.post("/jobs", echoBody, "Idempotency-Key: "+c.line).
				want(t, http.StatusBadRequest, "Idempotency-Key:").refused(t, http.StatusBadRequest, "idempotency-key-invalid", false)
			if p["reason"] != c.reason || (c.reason == "length") != (fmt.Sprint(p["limit"]) == "255") {
				t.Errorf("%s: reason %v, limit %v", c.name, p["reason"], p["limit"])
			}
		}
		t.Run("Row1 no header", func(t *testing.T) {
			g.post("/jobs", echoBody).want(t, http.StatusBadRequest, "Idempotency-Key:").refused(t, http.StatusBadRequest, "idempotency-key-missing", false)
		})
		for name, lines := range map[string][2]string{"Row8 identical": {"two", "two"}, "Row8 different": {`"a"`, "b"}, "Row8 one is empty": {"", "b"}} {
			p := g.post("/jobs", echoBody, "Idempotency-Key: "+lines[0], "Idempotency-Key: "+lines[1]).refused(t, http.StatusBadRequest, "idempotency-key-invalid", false)
			if p["reason"] != "multiple" {
				t.Errorf("%s: reason %v", name, p["reason"])
			}
		}
		t.Run("Row12 bytes that HTTP forbids", func(t *testing.T) {
			for _, forbidden := range []string{"\x00", "\x01", "\x7f"} {
				a := g.raw("POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nIdempotency-Key: a" + forbidden + "b\r\nContent-Length: 15\r\n\r\n{\"type\":\"echo\"}")
				a.want(t, http.StatusBadRequest)
			}
		})
		if n := len(g.get("/jobs?limit=200").json(t)["jobs"].([]any)); n != len(spellings) {
			t.Errorf("%d jobs, want %d: a refused key left something", n, len(spellings))
		}
	})
}

var uuid7 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// C46: what happens without a key where none is required is rows 1 to 3.
func TestContract_Row2_Row3_Row10_Row13_KeysAsConfigured(t *testing.T) {
	config := `idempotency: {required: false, max_key_length: 20, key_pattern: "order-[0-9]+|[a-z]{30}"}`
	onGateway(t, config, func(t *testing.T, g *gateway) {
		seen := map[string]bool{}
		for range 3 {
			a := g.post("/jobs", echoBody).want(t, http.StatusAccepted, "Idempotency-Status: none", "Idempotency-Key: *")
			key, _ := a.json(t)["key"].(string)
			if !uuid7.MatchString(key) || seen[key] || a.Header.Get("Idempotency-Key") != `"`+key+`"` {
				t.Errorf("Row2: key %q, header %q", key, a.Header.Get("Idempotency-Key"))
			}
			seen[key] = true
			g.get(a.Header.Get("Location")).want(t, http.StatusOK)
		}
		g.post("/jobs", `{"type":"nope"}`).refused(t, http.StatusBadRequest, "unknown-job-type", false)
		g.submit("order-1", echoBody).want(t, http.StatusAccepted, "Idempotency-Status:").keyed(t, "order-1", false)
		for line, reason := range map[string]string{
			"": "empty", `""`: "empty", // Row3: never passed through
			"order-1x": "format", "xorder-1": "format", "ORDER-1": "format", `"order-1 "`: "format", "order-": "format",
			strings.Repeat("a", 30): "length",
		} {
			p := g.post("/jobs", echoBody, "Idempotency-Key: "+line).refused(t, http.StatusBadRequest, "idempotency-key-invalid", false)
			if p["reason"] != reason || (reason == "length") != (fmt.Sprint(p["limit"]) == "20") {
				t.Errorf("%q: reason %v, limit %v, want %s", line, p["reason"], p["limit"], reason)
			}
		}
	})
}

func TestContract_Row16_Row17_Row24_WhereAKeyDoesNothing(t *testing.T) {
	onGateway(t, "", func(t *testing.T, g *gateway) {
		g.submit("k", echoBody, "Authorization: Bearer one").want(t, http.StatusAccepted)
		g.finished("k")
		for _, line := range []string{"other", `"k"`, "", "a,b", "\xff"} { // malformed ones too
			key := "Idempotency-Key: " + line
			for _, path := range []string{"/jobs/k", "/jobs", "/jobs/k/result", "/healthz"} {
				g.get(path, key).want(t, http.StatusOK, "Idempotency-Status: ignored", "Idempotent-Replayed:")
				g.do(http.MethodHead, path, "", key).want(t, http.StatusOK, "Idempotency-Status: ignored")
			}
			g.get("/jobs/none", key).want(t, http.StatusNotFound, "Idempotency-Status: ignored")
			if a := g.do(http.MethodOptions, "/jobs", "", key).want(t, http.StatusMethodNotAllowed); a.Header.Get("Idempotency-Status") != "ignored" {
				t.Errorf("Row17: OPTIONS says %q", a.Header.Get("Idempotency-Status"))
			}
		}
		g.get("/jobs/k").want(t, http.StatusOK, "Idempotency-Status:")

		// Row24: whatever the credential, there is one tenant, and the log says so.
		g.submit("k", echoBody, "Authorization: Bearer two", "X-Tenant: b", "Cookie: c=d").want(t, http.StatusAccepted, "Idempotent-Replayed: true")
		if len(g.logLines("authentication is off: every caller is the tenant default")) != 1 {
			t.Error("Row24: the log does not say that there is one tenant")
		}
		var tenant string
		var fingerprint []byte
		row := g.beside(t).QueryRowContext(t.Context(), `select tenant, fingerprint from idempotency_keys where key = 'k'`)
		if err := row.Scan(&tenant, &fingerprint); err != nil || tenant != "default" {
			t.Errorf("Row24: tenant %q, %v", tenant, err)
		}
		if len(fingerprint) != 1+16+32 || fingerprint[0] != 1 { // C16: there always is one
			t.Errorf("Row25: fingerprint %x", fingerprint)
		}
	})
}

// original is the request that the ones below are compared with.
const (
	originalTarget = "/jobs?x=1&y=2&y=3"
	originalBody   = `{"type":"echo","payload":{"a":1,"b":[1,2],"s":"aé/\"","n":12345678901234567890}}`
)

var sameRequest = []struct{ name, target, body, header string }{
	{"BR09 C15 members in another order, blanks", originalTarget, "\n{ \"payload\" : {\"n\":12345678901234567890,\"s\":\"aé/\\\"\", \"b\":[ 1, 2 ],\"a\":1 },\r\n\t\"type\":\"echo\"}\n", ""},
	{"escapes", originalTarget, `{"t\u0079pe":"\u0065cho","payload":{"a":1,"b":[1,2],"s":"\u0061\u00E9\/\u0022","n":12345678901234567890}}`, ""},
	{"order of distinct query names", "/jobs?y=2&x=1&y=3", originalBody, ""},
	{"escapes in the query", "/jobs?%78=%31&y=2&y=3", originalBody, ""},
	{"media type's parameter", originalTarget, originalBody, "Content-Type: application/json; charset=UTF-8"},
	{"Prefer", originalTarget, originalBody, "Prefer: return=minimal"},
	{"tracing", originalTarget, originalBody, "Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
	{"authorization", originalTarget, originalBody, "Authorization: Bearer x"},
	{"other headers", originalTarget, originalBody, "User-Agent: another"},
}

var otherRequest = []struct{ name, target, body, part string }{
	{"BR10 BR18 other amount", originalTarget, strings.Replace(originalBody, `"a":1`, `"a":50`, 1), "body"},
	{"BR09 array in another order", originalTarget, strings.Replace(originalBody, `[1,2]`, `[2,1]`, 1), "body"},
	{"BR09 string for a number", originalTarget, strings.Replace(originalBody, `"a":1`, `"a":"1"`, 1), "body"},
	{"C15 1.0 for 1", originalTarget, strings.Replace(originalBody, `"a":1`, `"a":1.0`, 1), "body"},
	{"C15 1e0 for 1", originalTarget, strings.Replace(originalBody, `"a":1`, `"a":1e0`, 1), "body"},
	{"C15 above 2^53", originalTarget, strings.Replace(originalBody, `567890}`, `567891}`, 1), "body"},
	{"null member", originalTarget, strings.Replace(originalBody, `"a":1`, `"a":1,"c":null`, 1), "body"},
	{"other type", originalTarget, strings.Replace(originalBody, "echo", "nope", 1), "body"},
	{"Row68 invalid now", originalTarget, strings.Replace(originalBody, `{"type"`, `{"priority":1000,"type"`, 1), "body"},
	{"Row68 no object", originalTarget, `[]`, "body"},
	{"BR12 C13 no query", "/jobs", originalBody, "target"},
	{"BR12 C13 one more parameter", originalTarget + "&dry_run=1", originalBody, "target"},
	{"BR12 wait", originalTarget + "&wait=5", originalBody, "target"},
	{"order of equal query names", "/jobs?x=1&y=3&y=2", originalBody, "target"},
	{"BR13 C14 separators in the value", "/jobs?x=1&y=2%26y%3D3", originalBody, "target"},
	{"BR13 C14 separators in the name", "/jobs?x%3D1=&y=2&y=3", originalBody, "target"},
	{"BR13 C14 bytes moved from value to name", "/jobs?x1=&y=2&y=3", originalBody, "target"},
	{"C11 both", "/jobs?z=1", `{"type":"echo"}`, "target"},
}

// Two requests are one exactly if their fingerprints say so, in every state of
// the first one, and who sends another one learns nothing of the first.
func TestContract_Row25_Row27_Row28_Row68_FingerprintsTellRequestsApart(t *testing.T) {
	onGateway(t, "", func(t *testing.T, g *gateway) {
		first := g.post(originalTarget, originalBody, "Idempotency-Key: k").want(t, http.StatusAccepted)
		for _, c := range sameRequest {
			headers := []string{jsonType, `Idempotency-Key: "k"`}
			if strings.HasPrefix(c.header, "Content-Type") {
				headers = headers[1:]
			}
			if c.header != "" {
				headers = append(headers, c.header)
			}
			a := g.do(http.MethodPost, c.target, c.body, headers...).want(t, http.StatusAccepted, "Idempotent-Replayed: true")
			if c.name != "Prefer" && !bytes.Equal(a.body, first.body) {
				t.Errorf("%s: %s", c.name, a.body)
			}
		}
		before := g.finished("k")
		for _, c := range otherRequest {
			t.Run(c.name, func(t *testing.T) { g.isMismatch(t, "k", c.part, g.post(c.target, c.body, "Idempotency-Key: k")) })
		}
		if after := g.get("/jobs/k").json(t); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("BR10: the job changed from %v to %v", before, after)
		}
		// BR11: a path that is none gives its own answer, never the stored one.
		g.post("/jobs/k/nothing", originalBody, "Idempotency-Key: k").refused(t, http.StatusNotFound, "route-not-found", false)
		g.post("/jobs/", originalBody, "Idempotency-Key: k").refused(t, http.StatusNotFound, "route-not-found", false)
	})
}

// isMismatch fails unless the answer is row 27 for the key.
func (g *gateway) isMismatch(t testing.TB, key, part string, a answer) map[string]any {
	t.Helper()
	p := a.keyed(t, key, false).refused(t, http.StatusUnprocessableEntity, "idempotency-key-reused", false)
	detail, _ := p["detail"].(string)
	if other := map[string]string{"body": "target", "target": "body"}[part]; !strings.Contains(detail, part) || strings.Contains(detail, other) {
		t.Errorf("detail %q, want the part %s", detail, part)
	}
	if p["idempotency_key"] != key || p["job"] != "/jobs/"+key {
		t.Errorf("idempotency_key %v, job %v", p["idempotency_key"], p["job"])
	}
	return p
}

func TestFailure_BR16_BR13_C10_C14_AMismatchTellsNothingOfTheFirstRequest(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		receiver := newHeld(t)
		g := start(t, database, receiver.config("held"))
		const secret = `{"type":"held","business_key":"biz-zz-91","payload":{"secret":"zz-91"}}`
		g.submit("k", secret).want(t, http.StatusAccepted)
		receiver.called(t, "k") // C10: the first one runs
		other := strings.Replace(secret, "zz-91", "yy-17", 1)
		running := g.submit("k", other)
		g.isMismatch(t, "k", "body", running)
		receiver.release("k")
		g.finished("k")
		ended := g.submit("k", other)
		g.isMismatch(t, "k", "body", ended)
		for _, a := range []answer{running, ended} {
			if headers := fmt.Sprint(a.Header); bytes.Contains(a.body, []byte("zz-91")) || strings.Contains(headers, "zz-91") || a.Header.Get("Job-Status") != "" {
				t.Errorf("the answer tells of the first request: %v %s", headers, a.body)
			}
		}
		if running.json(t)["instance"] == ended.json(t)["instance"] {
			t.Error("two problems are one instance")
		}
		// BR13: bytes moved between two members, and between a value and a name.
		g.submit("framed", `{"type":"echo","payload":{"a":"b|c","d":""}}`).want(t, http.StatusAccepted)
		for _, body := range []string{
			`{"type":"echo","payload":{"a":"b","d":"|c"}}`, `{"type":"echo","payload":{"a|b":"c","d":""}}`,
			`{"type":"echo","payload":{"a":"b|c\",\"d\":\""}}`, `{"type":"echo","payload":{"a":"b|c","d":"","":""}}`,
		} {
			g.isMismatch(t, "framed", "body", g.submit("framed", body))
		}
	})
}

// Everything in one place that all answers to keyed requests share.
func TestContract_KeyedResponses_C40_C41(t *testing.T) {
	onGateway(t, "job_types: {rejecting: {executor: echo, on_business_key_conflict: reject}}", func(t *testing.T, g *gateway) {
		const plain = `a "b" \c/`
		line := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(plain) + `"`
		g.submit(line, echoBody).want(t, http.StatusAccepted, "Error-Source:", "Content-Type: application/json").keyed(t, plain, false)
		g.submit(line, echoBody, "Prefer: wait=30").want(t, http.StatusOK, "Idempotency-Expires: *").keyed(t, plain, true)
		expires, err := time.Parse(time.RFC3339, g.submit(line, echoBody).keyed(t, plain, true).Header.Get("Idempotency-Expires"))
		if week := 168 * time.Hour; err != nil || time.Until(expires) > week || time.Until(expires) < week-5*time.Minute {
			t.Errorf("Idempotency-Expires %v: %v", expires, err)
		}
		g.submit("held-1", `{"type":"rejecting","business_key":"b","delay_seconds":600}`).want(t, http.StatusAccepted, "Idempotency-Expires:")
		problems := map[string]answer{
			"mismatch":     g.submit(line, `{"type":"echo"}`),
			"validation":   g.submit("v", `{}`),
			"unknown type": g.submit("v", `{"type":"nope"}`),
			"not JSON":     g.submit("v", `{`),
			"conflict":     g.submit("v", `{"type":"rejecting","business_key":"b"}`),
		}
		kinds := map[any]bool{}
		for name, a := range problems {
			asked := "v"
			if name == "mismatch" {
				asked = plain
			}
			p := a.keyed(t, asked, false).json(t)
			if p["idempotency_key"] != asked {
				t.Errorf("%s: idempotency_key %v", name, p["idempotency_key"])
			}
			kinds[p["type"]] = true
		}
		if len(kinds) != 4 { // C40: "validation" and "not JSON" are one
			t.Errorf("problem types %v", kinds)
		}
	})
}
