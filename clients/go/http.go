package idempotence

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"strings"
	"time"

	"github.com/jackc/pgx/v4"
)

// Key protects HTTP handlers with the header Idempotency-Key, as the IETF's draft and Stripe describe it.
//
//	guard := idempotence.Key{Requests: payments}
//	http.Handle("/transfers", guard.Protect(handler))
//
// The handler works on idempotence.Tx(r.Context()), and its answer is sent after COMMIT has returned. The answer is
// therefore kept in memory and cannot be streamed: the ResponseWriter is neither a Flusher nor a Hijacker. The recorded
// answers are those of the clients for other languages. Leases are not available.
type Key struct {
	Requests *Requests
	Optional bool  // a request without a key runs in a transaction and is not protected
	Strict   bool  // only the quoted string of the draft is accepted as a key
	MaxBody  int64 // the largest body in bytes, by default 1 MiB; larger ones are refused with 413
	// Methods are the protected methods in any case, by default all except GET, HEAD, OPTIONS and TRACE. Requests with
	// other methods run in a transaction and are not protected.
	Methods []string
	// Caller returns the id of the principal that a layer in front has authenticated. Each caller has its own keys. An
	// empty id is a programming error and is answered with 500. nil: all callers share their keys.
	Caller func(*http.Request) string
	// Wait is how long a duplicate waits for the lock holder, without occupying a connection. By default it is answered
	// with 409 at once.
	Wait time.Duration
	// HandlerTimeout limits the handler, by default to 60 s. After that the answer is 503 and nothing is kept.
	HandlerTimeout time.Duration
}

// protected is the value in the context of a protected request.
type protected struct {
	tx   pgx.Tx
	fail func(error)
}

type contextKey struct{}

func protectedBy(ctx context.Context) *protected {
	of, is := ctx.Value(contextKey{}).(*protected)
	if !is {
		panic("idempotence: this context is not that of a request to a handler inside of Protect")
	}
	return of
}

// Tx is the transaction of a protected request. It refuses every call after the handler has returned.
func Tx(ctx context.Context) pgx.Tx { return protectedBy(ctx).tx }

// Fail reports an error of the handler, which cannot return it. Nothing is kept, whatever the handler answers. The
// handler is called again if the error is one of its transaction that may pass; otherwise the answer is 500.
func Fail(ctx context.Context, err error) { protectedBy(ctx).fail(err) }

// WithTx returns a context for a test of a handler without Protect: Tx returns tx, and Fail calls fail.
func WithTx(ctx context.Context, tx pgx.Tx, fail func(error)) context.Context {
	return context.WithValue(ctx, contextKey{}, &protected{tx: tx, fail: fail})
}

// errTimeout ends a handler that has exceeded HandlerTimeout.
var errTimeout = errors.New("the handler has exceeded HandlerTimeout: its connection is closed")

// notFinal is an answer that is not recorded. The effects are rolled back, and a retry executes the request.
type notFinal struct{ *reply }

func (notFinal) Error() string { return "the answer is not final" }

// Protect returns a handler that executes every request once. It panics if the guard cannot work.
func (k Key) Protect(handler http.Handler) http.Handler {
	if handler == nil {
		panic("idempotence: Protect needs a handler")
	}
	k.check()
	if k.MaxBody == 0 {
		k.MaxBody = 1 << 20
	}
	if k.HandlerTimeout == 0 {
		k.HandlerTimeout = time.Minute
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := &call{Key: k, handler: handler, w: w, r: r}
		c.serve().send(w)
	})
}

// check panics if the guard cannot work.
func (k Key) check() {
	switch {
	case k.Requests == nil || k.Requests.Pool == nil:
		panic("idempotence: Key needs Requests with a pool: idempotence.New(pool, session)")
	case k.Requests.Session == "":
		panic("idempotence: Key needs Requests with a session: idempotence.New(pool, session)")
	case k.MaxBody < 0 || k.HandlerTimeout < 0 || k.Wait < 0:
		panic("idempotence: MaxBody, HandlerTimeout and Wait must not be negative")
	}
}

// protects reports whether requests with this method need a key.
func (k Key) protects(method string) bool {
	if k.Methods == nil {
		switch method {
		case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
			return false
		}
		return true
	}
	for _, each := range k.Methods {
		if strings.EqualFold(each, method) {
			return true
		}
	}
	return false
}

// call is one HTTP request.
type call struct {
	Key
	handler http.Handler
	w       http.ResponseWriter
	r       *http.Request
	body    []byte // nil: it is not protected, and the handler reads it from the network
}

// serve returns the answer after COMMIT.
func (c *call) serve() *reply {
	sent := c.r.Header.Values("Idempotency-Key")
	if !c.protects(c.r.Method) || (len(sent) == 0 && c.Optional) {
		return c.free()
	}
	name, refused := c.name(c.r)
	if refused != nil {
		return refused
	}
	body, refused := readBody(c.r, c.MaxBody)
	if refused != nil {
		return refused
	}
	c.body = body
	return c.once(name)
}

// free runs the handler in a transaction of its own.
func (c *call) free() *reply {
	var answer *reply
	err := c.Requests.unprotected(c.r.Context(), func(ctx context.Context, tx pgx.Tx) (_ any, err error) {
		answer, err = c.handle(ctx, tx)
		if err == nil && answer.status >= 400 {
			err = Final{}
		}
		return nil, err
	})
	return c.answer(answer, err)
}

// once executes or replays the request. A duplicate does not wait in the database, because it would occupy a connection
// meanwhile.
func (c *call) once(name string) *reply {
	path, query := target(c.r)
	payload := map[string]string{"method": strings.ToUpper(c.r.Method), "path": path, "query": query,
		"body": digest(c.body)}
	var answer *reply
	work := func(ctx context.Context, tx pgx.Tx) (_ any, err error) {
		answer, err = c.handle(ctx, tx)
		if err == nil && answer.status >= 400 {
			err = Final{recorded(answer)}
		} else if err == nil {
			return recorded(answer), nil
		}
		return nil, err
	}
	done, err := c.Requests.run(c.r.Context(), request{key: name, payload: payload}, c.Wait, work)
	if err == nil && done.Replayed {
		return replayed(done)
	}
	return c.answer(answer, err)
}

// answer is the handler's answer if err is nil, and otherwise that of the error.
func (c *call) answer(answer *reply, err error) *reply {
	var open notFinal
	own, ofHandler := err.(failure)
	switch {
	case err == nil:
		return answer
	case ofHandler && errors.As(own.cause, &open):
		return open.reply
	case ofHandler && errors.Is(own.cause, errTimeout):
		log.Printf("idempotence: %s %s: %v", c.r.Method, c.r.URL.Path, errTimeout)
		return problem("unavailable")
	case errors.As(err, &InProgress{}):
		return problem("in-progress")
	case errors.As(err, &Interrupted{}):
		return problem("interrupted")
	case errors.As(err, &passing{}) || c.r.Context().Err() != nil:
		return problem("unavailable")
	case state(err) == "ID001":
		return problem("key-reused")
	case state(err) == "ID009" && answer != nil:
		return responseTooLarge(err)
	}
	return failed(err)
}

// failed is the answer to an error of the program.
func failed(err error) *reply {
	if code := state(plain(err)); code == "ID007" || code == "ID008" {
		err = fmt.Errorf("%w (%v)", errMisuse, err)
	}
	log.Printf("idempotence: not answered: %v", err)
	return &reply{status: http.StatusInternalServerError, header: http.Header{}}
}

// handle calls the handler and returns its answer if that is final. It does not wait for a handler that exceeds the
// timeout or whose caller is gone; such a handler finds its transaction ended.
func (c *call) handle(ctx context.Context, tx pgx.Tx) (*reply, error) {
	connection := tx.(*transaction).connection
	limited, cancel := context.WithTimeout(ctx, c.HandlerTimeout)
	defer cancel()
	w := newWriter(c.w, cancel)
	defer w.close()
	r := c.r.WithContext(WithTx(limited, tx, w.fail))
	if c.body != nil {
		r.Body = io.NopCloser(bytes.NewReader(c.body))
	}
	done := make(chan any, 1)
	go func() {
		defer func() { done <- recover() }()
		c.handler.ServeHTTP(w, r)
		w.WriteHeader(http.StatusOK)
		_ = connection.end(limited)
	}()
	timer := time.NewTimer(c.HandlerTimeout)
	defer timer.Stop()
	select {
	case panicked := <-done:
		if panicked != nil {
			panic(panicked)
		}
		if limited.Err() == context.DeadlineExceeded {
			connection.kill()
			return nil, errTimeout
		}
	case <-timer.C:
		connection.kill()
		return nil, errTimeout
	case <-ctx.Done():
		connection.kill()
		return nil, ctx.Err()
	}
	answer, err := w.finish()
	if err != nil {
		return nil, handlersError{err}
	}
	if !answer.final() {
		return nil, notFinal{answer}
	}
	return answer, nil
}

// handlersError is an error that the handler has passed to Fail. It keeps a Final in it from being recorded.
type handlersError struct{ error }

func (h handlersError) As(target any) bool {
	_, isFinal := target.(*Final)
	return !isFinal && errors.As(h.error, target)
}

// name returns the request's key in the session, or a problem.
func (k Key) name(r *http.Request) (string, *reply) {
	sent := r.Header.Values("Idempotency-Key")
	if len(sent) == 0 {
		return "", problem("key-missing")
	}
	key := parsed(sent, k.Strict)
	if key == "" {
		return "", problem("key-malformed")
	}
	if k.Caller == nil {
		return named("", key), nil
	}
	caller := k.Caller(r)
	if caller == "" {
		return "", failed(fmt.Errorf("%s %s: Caller returned an empty id: authenticate in front of the adapter; Caller"+
			" must return the principal's id", r.Method, r.URL.Path))
	}
	return named(caller, key), nil
}
