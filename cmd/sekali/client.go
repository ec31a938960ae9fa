package main

import (
	"context"
	"crypto/rand"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sekali/sekali/client"
)

// clientFlags are the flags of every command that asks a gateway.
type clientFlags struct {
	outputFlag
	URL   string `help:"Address of the gateway." env:"SEKALI_URL" default:"http://127.0.0.1:8080"`
	Token string `help:"API key, where the gateway asks for one." env:"SEKALI_TOKEN"`

	typedURL, typedToken bool // given as flags
}

func (f *clientFlags) wasTyped(flag string) {
	f.typedURL = f.typedURL || flag == "--url"
	f.typedToken = f.typedToken || flag == "--token"
}

// urlWord is the address as it is typed, if it was, without its password.
func (f clientFlags) urlWord() string {
	if !f.typedURL {
		return ""
	}
	return " --url=" + shellWord(f.address())
}

const (
	// callRetries outlast a restart of the gateway's database connection, and are
	// over soon for somebody who looks on.
	callRetries = 3
	// bulkRetries outlast a restart of the gateway: nobody wants to begin again.
	bulkRetries = 6
	// callPause is what somebody who looks on waits for without a word. Where the
	// gateway asks for more, the command ends and says for how much.
	callPause = 5 * time.Second
	// bulkPause leaves room for what the client adds to a notedPause. What the
	// gateway asks for beyond it, commands over many jobs wait for and say so.
	bulkPause = 2 * notedPause
)

// connect returns the gateway's client, which sends so often again and pauses so
// long before it, at most. Errors: *usageError.
func (f clientFlags) connect(retries int, pause time.Duration) (*client.Client, error) {
	if f.URL == "" {
		return nil, &usageError{f.urlSource() + " is empty: leave it unset for http://127.0.0.1:8080"}
	}
	if _, err := client.New(f.URL); err != nil {
		// The address is not told: a password may be anywhere in a wrong one.
		return nil, &usageError{f.urlSource() + " must be an http:// or https:// address without ? and #, with a port from 1 to 65535, such as http://127.0.0.1:8080"}
	}
	c, err := client.New(f.URL, client.WithToken(f.Token), client.WithRetries(retries), client.WithLongestPause(pause), client.WithUserAgent("sekali-cli/"+version))
	if err != nil {
		return nil, &usageError{f.tokenSource() + ": " + ownText(err)}
	}
	return c, nil
}

// urlSource is where the address comes from; the default one is right.
func (f clientFlags) urlSource() string {
	if f.typedURL {
		return "--url"
	}
	return "SEKALI_URL"
}

func (f clientFlags) tokenSource() string {
	if f.typedToken {
		return "--token"
	}
	return "SEKALI_TOKEN"
}

// send sends one request, a few times where the gateway says so or does not answer.
// Errors: *refusedError, *unreachableError, *interruptedError, *usageError.
func (f clientFlags) send(ctx context.Context, r client.Request) (client.Answer, error) {
	c, err := f.connect(callRetries, callPause)
	if err != nil {
		return client.Answer{}, err
	}
	got, err := c.Do(ctx, r)
	return got, f.explained(ctx, err)
}

// get reads a document of the gateway.
func (f clientFlags) get(ctx context.Context, path string, document any) (client.Answer, error) {
	got, err := f.send(ctx, client.Request{Method: http.MethodGet, Path: path})
	if err != nil {
		return got, err
	}
	return got, f.decoded(got, document)
}

// decoded reads the answer's document. Errors: *unreachableError.
func (f clientFlags) decoded(got client.Answer, document any) error {
	if err := got.Decode(document); err != nil {
		return f.noGateway(err)
	}
	return nil
}

// waiting is the request with the wish that its answer is held until a job has
// finished, or has changed.
func waiting(r client.Request, wait time.Duration) client.Request {
	if r.Header == nil {
		r.Header = http.Header{}
	}
	seconds := (min(max(wait, 0), longestWait) + time.Second - 1) / time.Second
	r.Header.Set("Prefer", "wait="+strconv.FormatInt(int64(seconds), 10))
	return r
}

// jobPath is the path of a job, or of something below it.
func jobPath(key, below string) string { return "/jobs/" + url.PathEscape(key) + below }

// executorPath is the path of a type's executor, or of something below it.
func executorPath(name, below string) string { return "/executors/" + url.PathEscape(name) + below }

// keyFlag names the call itself, so that it changes once however often it is
// sent.
type keyFlag struct {
	CallKey string `name:"key" placeholder:"KEY" help:"Idempotency-Key of this call: give the same one to repeat it. Default: a new one, which is printed."`
}

// callKey returns the given key, or a new one and tells it.
func (f keyFlag) callKey(t terminal) string {
	if f.CallKey != "" {
		return f.CallKey
	}
	key := newCallKey()
	t.note("the key of this call is %s; repeat it with --key %s", key, key)
	return key
}

func newCallKey() string { return "cli-" + rand.Text() }
