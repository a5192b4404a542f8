package idempotence

import (
	"errors"
	"io"
	"net/http"
)

// readBody reads the whole body, with or without a Content-Length. It returns a problem if the body is too large or not
// complete.
func readBody(r *http.Request, most int64) ([]byte, *reply) {
	if r.ContentLength > most {
		return nil, bodyTooLarge(most)
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, most+1))
	var limited *http.MaxBytesError
	switch {
	case errors.As(err, &limited):
		return nil, bodyTooLarge(limited.Limit)
	case int64(len(body)) > most:
		return nil, bodyTooLarge(most)
	case len(body) == 0 && r.ContentLength != 0 && r.PostForm != nil:
		return nil, bodyUnsupported("A layer in front of the adapter has parsed the form, so the body cannot be compared.")
	case err != nil || int64(len(body)) < r.ContentLength:
		return nil, bodyIncomplete()
	}
	return body, nil
}
