package idempotence

import (
	"bytes"
	"encoding/json"
	"net/http"
	"sort"
	"strings"
	"unicode/utf8"
)

// replayedHeaders are the headers that a replay repeats. Never Set-Cookie: another client may send the key again.
var replayedHeaders = map[string]bool{"content-type": true, "content-encoding": true, "content-language": true,
	"content-disposition": true, "location": true, "etag": true, "last-modified": true, "link": true, "retry-after": true}

// reply is a complete answer that has not been sent yet.
type reply struct {
	status int
	header http.Header
	body   bytes.Buffer
	whole  bool // header has all headers, also those that layers in front of the adapter have set
}

// final reports whether the answer is recorded. Otherwise a retry executes the request.
func (r *reply) final() bool {
	switch r.status {
	case 401, 405, 407, 408, 409, 415, 425, 429:
		return false
	}
	return r.status >= 200 && r.status < 500
}

func (r *reply) send(w http.ResponseWriter) {
	if r.whole {
		replace(w.Header(), r.header)
	} else {
		for name, values := range r.header {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(r.status)
	_, _ = w.Write(r.body.Bytes())
}

// replace makes the headers those of another answer.
func replace(headers, other http.Header) {
	for name := range headers {
		delete(headers, name)
	}
	for name, values := range other {
		headers[name] = values
	}
}

// response is an answer in its recorded form. jsonb has no character 0, so a body with one is recorded in base64.
type response struct {
	Status  int         `json:"status"`
	Headers [][2]string `json:"headers"`
	Body    *string     `json:"body,omitempty"`
	Base64  []byte      `json:"base64,omitempty"`
}

func recorded(answer *reply) response {
	r := response{Status: answer.status, Headers: [][2]string{}}
	for name, values := range answer.header {
		if lower := strings.ToLower(name); replayedHeaders[lower] {
			for _, value := range values {
				r.Headers = append(r.Headers, [2]string{lower, characters(value)})
			}
		}
	}
	sort.SliceStable(r.Headers, func(i, j int) bool { return r.Headers[i][0] < r.Headers[j][0] })
	if body := answer.body.String(); utf8.ValidString(body) && !strings.Contains(body, "\x00") {
		r.Body = &body
	} else {
		r.Base64 = answer.body.Bytes()
	}
	return r
}

// replayed is the answer that a request was recorded with.
func replayed(done Answer) *reply {
	var r response
	if done.Status == "cancelled" {
		return problem("cancelled")
	} else if json.Unmarshal(done.Response, &r) != nil || r.Headers == nil {
		return problem("interrupted")
	}
	answer := &reply{status: r.Status, header: http.Header{"Idempotent-Replayed": {"true"}}}
	for _, each := range r.Headers {
		answer.header.Add(each[0], octets(each[1]))
	}
	if r.Body != nil {
		answer.body.WriteString(*r.Body)
	} else {
		answer.body.Write(r.Base64)
	}
	return answer
}

// characters converts the bytes of a header into characters of the same numbers (latin-1), which JSON can hold.
func characters(value string) string {
	text := make([]rune, len(value))
	for i := range text {
		text[i] = rune(value[i])
	}
	return string(text)
}

// octets is the inverse of characters. A character that is not in latin-1 becomes UTF-8.
func octets(text string) string {
	var value []byte
	for _, each := range text {
		if each < 256 {
			value = append(value, byte(each))
		} else {
			value = utf8.AppendRune(value, each)
		}
	}
	return string(value)
}
