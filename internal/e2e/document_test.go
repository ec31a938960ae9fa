package e2e_test

import (
	"cmp"
	"flag"
	"fmt"
	"hash/maphash"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
)

// document is what every answer to a test is compared with.
var document = sync.OnceValues(readContract)

// seen counts what the answers to the tests have had in them.
var seen = struct {
	sync.Mutex
	times map[sight]int
}{times: map[sight]int{}}

// sight is something that the document promises of an operation: a status, and
// with it a problem's code, or a header.
type sight struct {
	operation string
	status    int
	detail    string
}

func (s sight) String() string {
	return strings.TrimSpace(fmt.Sprint(s.operation, " ", s.status, " ", s.detail))
}

// due are the exchanges that wait for the ends of their tests. To compare one may
// cost more than to answer it: done at once, it would slow down what is measured.
var due = struct {
	sync.Mutex
	of   map[testing.TB][]exchange
	hash map[uint64]bool // of all that were ever due: the same answer is compared once
}{of: map[testing.TB][]exchange{}, hash: map[uint64]bool{}}

// compare fails the test at its end if the exchange is not what the document says.
func (g *gateway) compare(x exchange) {
	h := x.hash()
	due.Lock()
	defer due.Unlock()
	if due.hash[h] {
		return
	}
	due.hash[h] = true
	if due.of[g.t] == nil {
		g.t.Cleanup(func() { settle(g.t) })
	}
	due.of[g.t] = append(due.of[g.t], x)
}

var seed = maphash.MakeSeed()

// hash is that of everything but the time and the name of the request.
func (x exchange) hash() uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	fmt.Fprintln(&h, x.method, x.target, x.header, len(x.sent), x.answer.StatusCode)
	header := x.answer.Header.Clone()
	for _, name := range []string{"Date", "X-Request-Id"} {
		if header.Get(name) != "" {
			header.Set(name, "any")
		}
	}
	fmt.Fprintln(&h, header)
	h.Write(x.sent)
	h.Write(x.answer.body)
	return h.Sum64()
}

// settle compares what is due of a test.
func settle(t testing.TB) {
	due.Lock()
	exchanges := due.of[t]
	delete(due.of, t)
	due.Unlock()
	c, err := document()
	if err != nil {
		t.Errorf("the OpenAPI document: %v", err)
		return
	}
	for _, x := range exchanges {
		if wrong := c.check(x); len(wrong) > 0 {
			t.Errorf("%s %s: %d is not what the OpenAPI document says:\n%s\nheaders %v",
				x.method, x.target, x.answer.StatusCode, strings.Join(wrong, "\n"), x.answer.Header)
		}
		c.remember(x)
	}
}

// remember counts what has been seen by now.
func (c *contract) remember(x exchange) {
	op := c.find(x.method, x.target)
	if op == nil || x.answer.notOurs() {
		return
	}
	seen.Lock()
	defer seen.Unlock()
	seen.times[sight{op.id, x.answer.StatusCode, x.answer.code()}]++
	for name := range x.answer.Header {
		seen.times[sight{op.id, x.answer.StatusCode, name}]++
	}
}

// compareRaw is compare for what was sent as bytes; the request is not looked
// into, since it may be none.
func (g *gateway) compareRaw(request string, a answer) {
	method, rest, _ := strings.Cut(request, " ")
	target, _, _ := strings.Cut(rest, " ")
	g.compare(exchange{method: method, target: target, answer: a})
}

// unseen lists what is documented and was never seen.
func unseen() ([]sight, error) {
	c, err := document()
	if err != nil {
		return nil, err
	}
	seen.Lock()
	defer seen.Unlock()
	var missing []sight
	for _, op := range c.operations {
		for status, answer := range op.answers {
			for _, detail := range answer.details() {
				if s := (sight{op.id, status, detail}); seen.times[s] == 0 {
					missing = append(missing, s)
				}
			}
		}
	}
	slices.SortFunc(missing, func(a, b sight) int { return cmp.Compare(a.String(), b.String()) })
	return missing, nil
}

// details are what the document promises of an answer. What a gateway says of a
// key hangs on whether one was sent, and on whether it asks for keys: which of
// that comes with which refusal is not told apart.
func (r response) details() []string {
	details := slices.Clone(r.codes)
	if len(r.codes) == 0 {
		details = append(details, "")
	}
	for name := range r.headers {
		if name != "Idempotency-Status" {
			details = append(details, name)
		}
	}
	return details
}

// covered turns the exit code of a run of all tests into a failure if the
// document promises answers that none of them has got.
func covered(code int) int {
	if code != 0 || !whole() {
		return code
	}
	missing, err := unseen()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	for _, s := range missing {
		fmt.Fprintln(os.Stderr, "documented, and seen by no test:", s)
	}
	return min(len(missing), 1)
}

// whole reports whether all tests were to run.
func whole() bool {
	for _, filter := range []string{"test.run", "test.skip", "test.list", "test.fuzz"} {
		if flag.Lookup(filter).Value.String() != "" {
			return false
		}
	}
	return !testing.Short()
}

// exchangeOf is what went over the wire for a request of Go's client.
func exchangeOf(r *http.Request, sent string, a answer) exchange {
	return exchange{method: r.Method, target: r.URL.RequestURI(), header: r.Header, sent: []byte(sent), answer: a}
}
