package idempotence

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v4"
)

// Key is the header Idempotency-Key for handlers of POST and PATCH, as the IETF's draft and Stripe have it. Those of
// other methods get a transaction and no more.
//
//	guard := idempotence.Key{Requests: payments}
//	http.Handle("/transfers", guard.Protect(handler))
//
// The handler works on idempotence.Tx(r.Context()), and its answer leaves after COMMIT has returned. So it must be
// whole: it is kept in memory, and cannot be streamed. What is recorded is what the clients for other languages record.
// There is no lease, no wait for who is at work, and no GET on the key.
type Key struct {
	Requests *Requests
	Optional bool                       // a request without a key gets a transaction and no more
	Strict   bool                       // only the quoted string of the draft is a key
	MaxBody  int64                      // the most bytes that are protected, by default 1 MB; larger bodies are refused
	Caller   func(*http.Request) string // whose keys are then its own; nil: all are one
}

// doing is what the context of a protected request has.
type doing struct {
	tx  pgx.Tx
	err error
}

type place struct{}

// Tx is the transaction of a protected request, which the handler works in.
func Tx(ctx context.Context) pgx.Tx { return ctx.Value(place{}).(*doing).tx }

// Fail tells of an error of the handler, which cannot return it, and takes all back, whatever the handler answers. It
// is called again if the error may pass; anything else is 500.
func Fail(ctx context.Context, err error) { ctx.Value(place{}).(*doing).err = err }

const docs = "https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header"

var (
	// Never Set-Cookie: who sends a key again may be somebody else.
	kept = []string{"content-type", "content-language", "content-disposition", "location", "etag", "last-modified",
		"link"}
	// A string of RFC 8941, and parameters behind it; or, where that is allowed, the key as it is.
	quoted  = regexp.MustCompile(`^ *"((?:[ !#-\[\]-~]|\\["\\])*)"(?: *; *[a-z*][a-z0-9_.*-]*(?:=[!#-+\--:<-~]+)?)* *$`)
	bare    = regexp.MustCompile(`^ *([!#-+\--:<-~]+) *$`)
	escaped = regexp.MustCompile(`\\(.)`)
)

// reply is an answer that has not left yet.
type reply struct {
	status int
	header http.Header
	body   bytes.Buffer
}

func (r *reply) Header() http.Header { return r.header }

func (r *reply) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *reply) Write(part []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(part)
}

func (r *reply) send(w http.ResponseWriter) {
	for name, values := range r.header {
		w.Header()[name] = values
	}
	w.WriteHeader(r.status)
	_, _ = w.Write(r.body.Bytes())
}

// notFinal is an answer that is not kept, and takes the effects back: a retry executes the request.
type notFinal struct{ *reply }

func (notFinal) Error() string { return "not kept" }

// Protect answers for the handler.
func (k Key) Protect(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, err := k.serve(r, handler)
		if err != nil {
			log.Printf("idempotence: not answered: %v", err)
			answer = &reply{status: http.StatusInternalServerError}
		}
		answer.send(w)
	})
}

func (k Key) serve(r *http.Request, handler http.Handler) (*reply, error) {
	sent := r.Header.Values("Idempotency-Key")
	if (r.Method != http.MethodPost && r.Method != http.MethodPatch) || (len(sent) == 0 && k.Optional) {
		var answer *reply
		err := k.Requests.transaction(r.Context(), time.Now().Add(k.Requests.Deadline), func(tx pgx.Tx) (err error) {
			answer, err = handled(r, tx, handler)
			return
		})
		return answered(answer, err)
	}
	most := k.MaxBody
	if most == 0 {
		most = 1 << 20
	}
	key := k.key(sent)
	switch {
	case len(sent) == 0:
		return problem("key-missing", 400, "this request needs a header Idempotency-Key"), nil
	case key == "":
		return problem("key-malformed", 400, "the header Idempotency-Key is not one string of 1 to 255 characters"), nil
	case r.ContentLength < 0:
		return problem("length-required", 411, "a body that is to be protected needs a Content-Length"), nil
	case r.ContentLength > most:
		return problem("body-too-large", 413, "the body is too large to be protected"), nil
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	return k.once(r, key, body, handler)
}

// once asks and answers. A duplicate waits for nobody: it would hold a connection.
func (k Key) once(r *http.Request, key string, body []byte, handler http.Handler) (*reply, error) {
	payload := map[string]string{"method": r.Method, "path": r.URL.Path, "query": r.URL.RawQuery, "body": digest(body)}
	name := k.name(r, key)
	var answer *reply
	err := k.Requests.retried(r.Context(), 0, func(tx pgx.Tx) error {
		work := func(ctx context.Context, tx pgx.Tx) (any, error) {
			r.Body = io.NopCloser(bytes.NewReader(body))
			var err error
			if answer, err = handled(r, tx, handler); err == nil && answer.status >= 400 {
				err = Final{recorded(answer)}
			} else if err == nil {
				return recorded(answer), nil
			}
			return nil, err
		}
		done, err := k.Requests.executed(r.Context(), tx, name, payload, 0, work)
		if err == nil && done.Replayed {
			answer, err = replayed(done)
		}
		return err
	})
	switch {
	case errors.As(err, &InProgress{}):
		return problem("in-progress", 409, "the first request with this key is still at work: send it again later"), nil
	case errors.As(err, &Interrupted{}):
		return problem("interrupted", 409, "the first request with this key stopped in the middle: look why"), nil
	case state(err) == "ID001":
		return problem("key-reused", 422, "the key was used for another request: a new one needs a new key"), nil
	case err != nil && mayRetry(err):
		return problem("unavailable", 503, "nobody knows what was done: send it again, unchanged"), nil
	}
	return answered(answer, err)
}

func answered(answer *reply, err error) (*reply, error) {
	var open notFinal
	if errors.As(err, &open) {
		return open.reply, nil
	}
	return answer, err
}

// handled is what the handler answers, if it is to be kept.
func handled(r *http.Request, tx pgx.Tx, handler http.Handler) (*reply, error) {
	work, answer := &doing{tx: tx}, &reply{header: http.Header{}}
	handler.ServeHTTP(answer, r.WithContext(context.WithValue(r.Context(), place{}, work)))
	answer.WriteHeader(http.StatusOK)
	if work.err != nil {
		return nil, work.err
	}
	switch status := answer.status; {
	case status < 200 || status >= 500, status == 408, status == 409, status == 425, status == 429:
		return nil, notFinal{answer}
	}
	return answer, nil
}

// key is the one that was sent. "": it is none.
func (k Key) key(sent []string) string {
	if len(sent) != 1 {
		return ""
	}
	key := ""
	if found := quoted.FindStringSubmatch(sent[0]); found != nil {
		key = escaped.ReplaceAllString(found[1], "$1")
	} else if found := bare.FindStringSubmatch(sent[0]); found != nil && !k.Strict {
		key = found[1]
	}
	if len(key) > 255 {
		return ""
	}
	return key
}

// name is the request's: the caller, a colon, the key. No caller can make it the name of another's request.
func (k Key) name(r *http.Request, key string) string {
	caller := ""
	if k.Caller != nil {
		caller = k.Caller(r)
	}
	prefix := strings.NewReplacer("+", "%20", "~", "%7E", "%40", "@").Replace(url.QueryEscape(caller))
	if len(prefix) > 100 {
		prefix = "~" + digest([]byte(caller))
	}
	if name := prefix + ":" + key; len(name) <= 255 {
		return name
	}
	return (prefix + "~:" + digest([]byte(key)) + ":" + key)[:255]
}

func problem(slug string, status int, title string) *reply {
	answer := &reply{status: status, header: http.Header{}}
	answer.header.Set("Content-Type", "application/problem+json")
	answer.header.Set("Link", "<"+docs+`>; rel="describedby"`)
	if status == 409 || status == 503 {
		answer.header.Set("Retry-After", "1")
	}
	fmt.Fprintf(&answer.body, `{"type": "%s#%s", "title": "%s", "status": %d}`, docs, slug, title, status)
	return answer
}

// response is an answer as it is recorded. jsonb has no character 0.
type response struct {
	Status  int         `json:"status"`
	Headers [][2]string `json:"headers"`
	Body    *string     `json:"body,omitempty"`
	Base64  []byte      `json:"base64,omitempty"`
}

func recorded(answer *reply) response {
	r := response{Status: answer.status, Headers: [][2]string{}}
	for _, name := range kept {
		for _, value := range answer.header.Values(name) {
			r.Headers = append(r.Headers, [2]string{name, value})
		}
	}
	if body := answer.body.String(); utf8.ValidString(body) && !strings.Contains(body, "\x00") {
		r.Body = &body
	} else {
		r.Base64 = answer.body.Bytes()
	}
	return r
}

func replayed(done Answer) (*reply, error) {
	var r response
	if done.Status == "cancelled" {
		return problem("cancelled", 410, "the request with this key was cancelled, and never takes effect"), nil
	} else if json.Unmarshal(done.Response, &r) != nil || r.Headers == nil {
		return problem("interrupted", 409, "the request with this key was recorded, and not as an answer of HTTP"), nil
	}
	answer := &reply{status: r.Status, header: http.Header{"Idempotent-Replayed": {"true"}}}
	for _, each := range r.Headers {
		answer.header.Add(each[0], each[1])
	}
	if r.Body != nil {
		answer.body.WriteString(*r.Body)
	} else {
		answer.body.Write(r.Base64)
	}
	return answer, nil
}

func digest(bytes []byte) string { return fmt.Sprintf("%x", sha256.Sum256(bytes)) }
