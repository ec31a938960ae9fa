package main

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/sekali/sekali/client"
)

// What to do where the two programs do not know the same requests.
const otherVersion = "use the sekali of the gateway's own version: this one asks for what that one does not have."

// advices are what to do about a refusal, beyond what its detail says.
var advices = map[string]string{
	client.CodeJobNotFound:                    "check the key, and whether the API key is one of the job's tenant.",
	client.CodeUnauthenticated:                "give a valid API key with --token or SEKALI_TOKEN (sekali token create makes one).",
	client.CodeForbidden:                      "use an API key that has this permission.",
	client.CodeJobNotRetryable:                "wait until the job has failed or was cancelled; sekali inspect shows how it stands.",
	client.CodeJobNotResolvable:               "look at the job with sekali inspect: there is no doubt about it to resolve.",
	client.CodeJobAlreadyFinished:             "nothing: there is no more to cancel.",
	client.CodeJobNotFinished:                 "wait for it: sekali result --wait 60s KEY.",
	client.CodeJobHasNoResult:                 "nothing: the job has left no result.",
	client.CodeJobExpired:                     "nothing: the job has ended, and is no longer kept. A new operation needs another key.",
	client.CodeResultExpired:                  "nothing: the result is no longer kept (idempotency.result_retention). sekali status shows the job.",
	client.CodeExecutorNotFound:               "sekali executors lists the job types.",
	client.CodeUnknownJobType:                 "check the name: sekali executors lists the job types.",
	client.CodeBusinessKeyConflict:            "wait until the other job has ended, then repeat the call with the same --key.",
	client.CodeIdempotencyKeyRetired:          "nothing, if this is a late repetition; use another --key for a new operation.",
	client.CodeIdempotencyKeyReused:           "use another --key: this one stands for another request.",
	client.CodeIdempotencyKeyInvalid:          "give a --key as it is said above.",
	client.CodeIdempotencyKeyMissing:          "name the operation with --key.",
	client.CodeIdempotencyOutcomeUnknown:      "find out what the first call did before you use another --key.",
	client.CodeIdempotencyResponseNotRetained: "nothing: the first call was done; sekali status shows the job.",
	client.CodeRouteNotFound:                  "check the path in --url or SEKALI_URL: a gateway has none of its own. If there is none, " + otherVersion,
	client.CodeMethodNotAllowed:               otherVersion,
	client.CodeUnsupportedMediaType:           otherVersion,
	client.CodeRequestTooLarge:                "send less: put large inputs where the job can fetch them. Or raise limits.body (limits.batch for a file of jobs) in the gateway's configuration.",
	client.CodeValidationFailed:               "correct what is named above, and repeat the call.",
	client.CodeRequestRejected:                "correct what is named above, and repeat the call.",
	client.CodeBodyUnreadable:                 "repeat the call, with the same --key where there is one; look at the proxies in between if it happens again.",
	client.CodeRequestTimeout:                 "repeat the call, with the same --key where there is one; look at the network in between if it happens again.",
}

// advice is what to do; "" where nobody knows.
func (e *refusedError) advice() string {
	if e.Code == client.CodeJobNotFound && e.Job != "" {
		return "give the key of that job instead."
	}
	if advice, ok := advices[e.Code]; ok {
		return advice
	}
	switch {
	case e.Retryable && e.RetryAfter > 0:
		return fmt.Sprintf("try again after %s, with the same --key where there is one.", e.RetryAfter)
	case e.Retryable || e.Problem.Status == http.StatusServiceUnavailable:
		return "try again in a moment, with the same --key where there is one."
	case e.Problem.Status >= http.StatusInternalServerError && e.Instance != "":
		return "look into the gateway's log: it names the cause, under " + plain(e.Instance) + "."
	case e.Problem.Status >= http.StatusInternalServerError:
		return "look into the gateway's log: it names the cause."
	case strings.HasPrefix(e.Type, "http"): // of a later gateway, or of a program in between
		return "read what " + plain(e.Type) + " says about it."
	}
	return ""
}
