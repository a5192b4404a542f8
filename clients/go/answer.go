package idempotence

import (
	"context"
	"errors"
	"net/http"
	"time"
)

// Answer returns a handler for GET that sends the recorded answer of the request with this Idempotency-Key. It executes
// nothing. While a lock holder is executing the request, it waits up to Wait. Caller and Strict must be those of the
// protected route.
func (k Key) Answer() http.Handler {
	k.check()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := k.lookUp(r)
		// A cache does not know that the answer depends on the key and changes with time.
		answer.header.Set("Cache-Control", "no-store")
		answer.header["Vary"] = append(w.Header()["Vary"], "Idempotency-Key")
		answer.send(w)
	})
}

func (k Key) lookUp(r *http.Request) *reply {
	name, refused := k.name(r)
	if refused != nil {
		return refused
	}
	var found Answer
	ctx := r.Context()
	err := k.Requests.retried(ctx, k.Wait, func(deadline time.Time) (err error) {
		found, err = k.Requests.lookup(ctx, deadline, name, seconds(0, true))
		if err == nil && found.Status == "in_progress" {
			err = InProgress{Key: name}
		}
		return err
	})
	switch {
	case errors.As(err, &InProgress{}):
		return problem("in-progress")
	case errors.As(err, &passing{}) || errors.Is(err, context.Canceled):
		return problem("unavailable")
	case err != nil:
		return failed(err)
	}
	switch found.Status {
	case "succeeded", "failed", "cancelled":
		return replayed(found)
	case "suspended":
		return problem("interrupted")
	case "not_here":
		return problem("unavailable")
	}
	return problem("unknown")
}
