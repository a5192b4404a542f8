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

// problems are the answers of the adapter itself. The clients for other languages use the same words.
var problems = map[string]struct {
	status        int
	title, detail string
}{
	"key-missing": {400, "This request needs an idempotency key",
		"Send the header Idempotency-Key with a new key for each new request, and the same key with each retry."},
	"key-malformed": {400, "The idempotency key is malformed",
		"The header Idempotency-Key must be sent once and contain one string of 1 to 255 visible ASCII characters."},
	"key-reused": {422, "The idempotency key was used for another request",
		"The method, the path, the query or the body differs from those of the first request with this key. A new " +
			"request needs a new key."},
	"in-progress": {409, "The request is in progress",
		"The first request with this key has not been answered yet. Send the request again later, unchanged."},
	"interrupted": {409, "The request was interrupted",
		"The first request with this key stopped in the middle. It has to be taken over before it can be answered."},
	"cancelled": {410, "The request was cancelled",
		"The request with this key was cancelled before it was executed. It never takes effect."},
	"unknown": {404, "The request is unknown",
		"No request with this key is known."},
	"body-too-large": {413, "The body is too large",
		"The body is larger than %d bytes, the limit of this route."},
	"body-incomplete": {400, "The body is incomplete",
		"Fewer bytes arrived than Content-Length announces. Nothing was executed. Send the request again, unchanged."},
	"body-unsupported": {415, "The body cannot be compared",
		"The server cannot compare this body with the body of a retry. Nothing was executed."},
	"response-too-large": {500, "The response is too large to be recorded",
		"%s The limit is the setting idempotence.max_response of the database. The effects of the request were rolled " +
			"back."},
	"unavailable": {503, "The service is unavailable",
		"It is not known whether the request took effect. Send the request again, unchanged."},
}

// problem is an answer in the form of RFC 9457. docs/http.md explains the types.
func problem(slug string, facts ...any) *reply {
	of := problems[slug]
	answer := &reply{status: of.status, header: http.Header{}}
	answer.header.Set("Content-Type", "application/problem+json")
	answer.header.Set("Link", "<"+docs+`>; rel="describedby"`)
	if of.status == http.StatusConflict || of.status == http.StatusServiceUnavailable {
		answer.header.Set("Retry-After", "1")
	}
	_ = json.NewEncoder(&answer.body).Encode(struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
	}{docs + "#" + slug, of.title, of.status, fmt.Sprintf(of.detail, facts...)})
	return answer
}

// responseTooLarge names the size and the limit that the server's error reports.
func responseTooLarge(err error) *reply {
	var raised *pgconn.PgError
	errors.As(err, &raised)
	return problem("response-too-large", raised.Detail)
}
