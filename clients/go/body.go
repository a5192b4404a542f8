package idempotence

import (
	"errors"
	"io"
	"math"
	"net/http"
)

// readBody reads the whole body, with or without a Content-Length. It returns a problem if the body is too large or not
// complete.
func readBody(r *http.Request, most int64) ([]byte, *reply) {
	if r.ContentLength > most {
		return nil, problem("body-too-large", most)
	}
	// One more byte than allowed shows that the body is too large.
	reading := io.Reader(r.Body)
	if most < math.MaxInt64 {
		reading = io.LimitReader(r.Body, most+1)
	}
	body, err := io.ReadAll(reading)
	var limited *http.MaxBytesError
	switch {
	case errors.As(err, &limited):
		return nil, problem("body-too-large", limited.Limit)
	case int64(len(body)) > most:
		return nil, problem("body-too-large", most)
	case len(body) == 0 && r.ContentLength != 0 && r.PostForm != nil:
		return nil, problem("body-unsupported") // a layer in front has parsed the form
	case err != nil || int64(len(body)) < r.ContentLength:
		return nil, problem("body-incomplete")
	}
	return body, nil
}
