package idempotence

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/jackc/pgconn"
)

// docs is the page about the problem types.
const docs = "https://pgxn.org/dist/idempotence/docs/http.html"

// problem is an answer of the adapter itself (RFC 9457). docs/http.md explains the types.
func problem(slug string, status int, title, detail string) *reply {
	answer := &reply{status: status, header: http.Header{}}
	answer.header.Set("Content-Type", "application/problem+json")
	answer.header.Set("Link", "<"+docs+`>; rel="describedby"`)
	if status == http.StatusConflict || status == http.StatusServiceUnavailable {
		answer.header.Set("Retry-After", "1")
	}
	members := struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{docs + "#" + slug, title, status, detail}
	_ = json.NewEncoder(&answer.body).Encode(members)
	return answer
}

func keyMissing() *reply {
	return problem("key-missing", 400, "The header Idempotency-Key is missing",
		"Send the header Idempotency-Key with a new key for each request, and the same key with each retry.")
}

func keyMalformed() *reply {
	return problem("key-malformed", 400, "The header Idempotency-Key is malformed",
		"The header Idempotency-Key must be one string of 1 to 255 characters.")
}

func keyReused() *reply {
	return problem("key-reused", 422, "The key was used for another request",
		"A request with this key and another method, path, query or body was received before. Use a new key.")
}

func inProgress() *reply {
	return problem("in-progress", 409, "The request is still in progress",
		"The first request with this key is still being executed. Send it again later, unchanged.")
}

func interrupted() *reply {
	return problem("interrupted", 409, "The request was interrupted",
		"The first request with this key stopped in the middle. An operator must check what has happened.")
}

func notHTTP() *reply {
	return problem("interrupted", 409, "The recorded response is not an HTTP answer",
		"The request with this key was recorded by a program that is not an HTTP adapter.")
}

func cancelled() *reply {
	return problem("cancelled", 410, "The request was cancelled",
		"The request with this key was cancelled and never takes effect.")
}

func unknown() *reply {
	return problem("unknown", 404, "The key is not known", "No request with this key has been recorded or is in progress.")
}

func bodyTooLarge(most int64) *reply {
	return problem("body-too-large", 413, "The body is too large",
		fmt.Sprintf("The body exceeds the limit of %d bytes.", most))
}

func bodyIncomplete() *reply {
	return problem("body-incomplete", 400, "The body is incomplete",
		"The body ended before its announced length. Nothing was executed. Send the request again.")
}

func bodyUnsupported(detail string) *reply {
	return problem("body-unsupported", 415, "The body cannot be protected", detail)
}

func unavailable() *reply {
	return problem("unavailable", 503, "The result is not known",
		"The connection to the database was lost or could not be opened. Send the request again, unchanged.")
}

func handlerTimeout() *reply {
	return problem("unavailable", 503, "The handler exceeded its time limit",
		"Nothing was kept. Send the request again, unchanged.")
}

// responseTooLarge reports the limit that the server's error names.
func responseTooLarge(err error) *reply {
	detail := err.Error()
	var raised *pgconn.PgError
	if errors.As(err, &raised) {
		detail = raised.Detail
	}
	return problem("response-too-large", 500, "The response is too large to be recorded",
		"Nothing was kept. "+detail+" The limit is the setting idempotence.max_response.")
}
