package idempotence

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
)

var (
	errWriterClosed = errors.New("the handler has returned or has exceeded its time")
	errExited       = errors.New("the goroutine of the handler has exited without an answer")
	errTrailers     = errors.New("trailers cannot be recorded: send these headers in front of the body")
	errStream       = errors.New("a protected route cannot stream: the answer is sent after COMMIT")
)

// writer is the ResponseWriter of a handler. It keeps the answer in memory and behaves as net/http's in all else.
type writer struct {
	mutex  sync.Mutex // for goroutines that outlive the handler
	w      http.ResponseWriter
	before http.Header // what layers in front of the adapter have set
	header http.Header
	answer *reply
	err    error
	closed bool
	cancel func() // ends the handler's context
}

func newWriter(w http.ResponseWriter, cancel func()) *writer {
	return &writer{w: w, before: w.Header().Clone(), header: w.Header().Clone(), cancel: cancel}
}

func (w *writer) Header() http.Header {
	if w.header == nil {
		w.header = http.Header{}
	}
	return w.header
}

func (w *writer) WriteHeader(status int) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.closed || w.answer != nil {
		return
	}
	switch {
	case status < 100 || status > 999:
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	case status == http.StatusSwitchingProtocols:
		w.refuse(errStream)
	case status < 200:
		replace(w.w.Header(), w.header.Clone())
		w.w.WriteHeader(status)
		replace(w.w.Header(), w.before.Clone())
		return
	case strings.HasPrefix(strings.ToLower(w.header.Get("Content-Type")), "text/event-stream"):
		w.refuse(errStream)
	}
	w.answer = &reply{status: status, header: w.header.Clone(), whole: true}
}

func (w *writer) Write(part []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	w.mutex.Lock()
	defer w.mutex.Unlock()
	switch {
	case w.closed:
		return 0, errWriterClosed
	case w.err == errStream:
		return 0, w.err
	case len(part) == 0:
		return 0, nil
	case w.answer.status == http.StatusNoContent || w.answer.status == http.StatusNotModified:
		return 0, http.ErrBodyNotAllowed
	}
	return w.answer.body.Write(part)
}

// FlushError is what http.ResponseController calls.
func (w *writer) FlushError() error { return errStream }

// fail keeps the first error of the handler.
func (w *writer) fail(err error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.err == nil && !w.closed {
		w.err = err
	}
}

// refuse ends a handler that does what a protected route cannot do. The caller holds the mutex.
func (w *writer) refuse(err error) {
	w.err = err
	w.cancel()
}

// close makes later calls, which come from other goroutines, have no effect.
func (w *writer) close() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.closed = true
}

// finish returns the answer after the handler has returned.
func (w *writer) finish() (*reply, error) {
	w.close()
	if w.err != nil {
		return nil, w.err
	}
	answer := w.answer
	if answer == nil {
		return nil, errExited
	}
	if answer.header == nil {
		answer.header = http.Header{}
	}
	if w.addsTrailers(answer.header) || w.addsTrailers(w.header) {
		return nil, errTrailers
	}
	// The server sets these from the body that it sends.
	answer.header.Del("Content-Length")
	answer.header.Del("Transfer-Encoding")
	// As net/http does it. A replay must not depend on the server's guess.
	if _, typed := answer.header["Content-Type"]; !typed && answer.body.Len() > 0 &&
		answer.header.Get("Content-Encoding") == "" {
		answer.header.Set("Content-Type", http.DetectContentType(answer.body.Bytes()))
	}
	for name, values := range answer.header {
		for _, value := range values {
			if strings.ContainsAny(value, "\r\n\x00") {
				return nil, fmt.Errorf("the header %s has a line break or a NUL in its value", name)
			}
		}
	}
	return answer, nil
}

// addsTrailers reports whether the handler has announced trailers or set some. net/http takes trailers from headers
// that are set after WriteHeader. Trailers of layers in front of the adapter are sent with every answer.
func (w *writer) addsTrailers(headers http.Header) bool {
	for name := range headers {
		_, before := w.before[name]
		if !before && (strings.EqualFold(name, "Trailer") || strings.HasPrefix(name, http.TrailerPrefix)) {
			return true
		}
	}
	return false
}
