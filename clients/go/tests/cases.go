package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
	"idempotence"
)

// The routes of test_cases.py: handlers as applications write them, with the mistakes that applications make. The
// body of a request names its run. notes are what the handlers and their goroutines have seen.
var notes struct {
	sync.Mutex
	of map[string][]string
}

func note(run, format string, arguments ...any) {
	notes.Lock()
	defer notes.Unlock()
	notes.of[run] = append(notes.of[run], fmt.Sprintf(format, arguments...))
}

func callCount(run string) (count int) {
	notes.Lock()
	defer notes.Unlock()
	for _, each := range notes.of[run] {
		if each == "call" {
			count++
		}
	}
	return
}

// handler is a handler that has read the run from the body.
type handler func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string)

// logged keeps the log.
type logged struct{}

func (logged) Write(line []byte) (int, error) {
	note("log", "%s", line)
	return len(line), nil
}

func effect(ctx context.Context, tx pgx.Tx, run string) error {
	_, err := tx.Exec(ctx, "INSERT INTO client_effect VALUES ($1, 1)", run)
	return err
}

// created has one effect and answers 201.
func created(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
	if err := effect(r.Context(), tx, run); err != nil {
		idempotence.Fail(r.Context(), err)
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, "created")
}

func serveCases(port string) {
	notes.of = map[string][]string{}
	log.SetOutput(io.MultiWriter(os.Stderr, logged{}))
	requests := idempotence.New(pool(os.Getenv("IDEM_OWNER")), "cases")
	requests.Deadline = 5 * time.Second
	guard := idempotence.Key{Requests: requests}
	limited := idempotence.Key{Requests: requests, HandlerTimeout: 500 * time.Millisecond}
	mux := http.NewServeMux()
	protect := func(guard idempotence.Key, f handler) http.Handler {
		return guard.Protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			run := string(must(io.ReadAll(r.Body)))
			note(run, "call")
			f(w, r, idempotence.Tx(r.Context()), run)
		}))
	}
	route := func(path string, f handler) { mux.Handle(path, protect(guard, f)) }

	route("/created", created)
	route("/late", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		late(r.Context(), tx, run)
		created(w, r, tx, run)
	})
	route("/late-refused", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		late(r.Context(), tx, run)
		http.Error(w, "no", http.StatusInternalServerError)
	})
	route("/running", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		created(w, r, tx, run)
		go func() {
			_, err := tx.Exec(context.Background(), "INSERT INTO client_effect SELECT $1, 2 FROM pg_sleep(0.5)", run)
			note(run, "running: %v", err)
		}()
		time.Sleep(100 * time.Millisecond)
	})
	route("/hold", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		created(w, r, tx, run)
		time.Sleep(700 * time.Millisecond)
	})
	route("/commit", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		created(w, r, tx, run)
		note(run, "commit: %v", tx.Commit(r.Context()))
	})
	route("/rollback", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		created(w, r, tx, run)
		note(run, "rollback: %v", tx.Rollback(r.Context()))
	})
	route("/other-database", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		created(w, r, tx, run)
		idempotence.Fail(r.Context(), fmt.Errorf("audit: %w", &pgconn.PgError{Code: "53300"}))
	})
	route("/other-deadline", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		ctx, cancel := context.WithTimeout(r.Context(), 50*time.Millisecond)
		defer cancel()
		<-ctx.Done()
		idempotence.Fail(r.Context(), ctx.Err())
	})
	for path, status := range map[string]int{"/slow-504": 504, "/slow-422": 422, "/slow-201": 201} {
		status := status
		route(path, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
			_ = effect(r.Context(), tx, run)
			ctx, cancel := context.WithTimeout(r.Context(), 200*time.Millisecond)
			defer cancel()
			if _, err := tx.Exec(ctx, "SELECT pg_sleep(3)"); err == nil {
				note(run, "not cancelled")
			}
			w.WriteHeader(status)
			fmt.Fprint(w, "too slow")
		})
	}
	route("/lost-422", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		if callCount(run) > 1 {
			created(w, r, tx, run)
			return
		}
		_ = effect(r.Context(), tx, run)
		_ = act(r.Context(), tx, run, object{"terminate": nil})
		_ = effect(r.Context(), tx, run)
		http.Error(w, "the handler takes the lost connection for a refusal", http.StatusUnprocessableEntity)
	})
	mux.Handle("/hang", protect(limited, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		created(w, r, tx, run)
		time.Sleep(3 * time.Second)
		note(run, "after the limit: %v", effect(context.Background(), tx, run))
	}))
	mux.Handle("/hang-statement", protect(limited, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		_, _ = tx.Exec(context.Background(), "SELECT pg_sleep(3)")
		created(w, r, tx, run)
	}))
	route("/throw", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		created(w, r, tx, run)
		panic("the handler panics")
	})
	route("/nested", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		created(w, r, tx, run)
		nested := func(payload int) error {
			_, err := requests.Run(r.Context(), "nested-"+run, payload, func(context.Context, pgx.Tx) (any, error) {
				return nil, nil
			})
			return err
		}
		if err := nested(1); err != nil {
			log.Panic(err)
		}
		idempotence.Fail(r.Context(), nested(2)) // ID001 of another request
	})
	route("/nested-busy", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		idempotence.Fail(r.Context(), idempotence.InProgress{Key: "another request"})
	})
	for path, sql := range map[string]string{"/sql-commit": "COMMIT", "/sql-rollback": "ROLLBACK"} {
		sql := sql
		route(path, func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
			created(w, r, tx, run)
			_, _ = tx.Exec(r.Context(), sql)
		})
	}
	route("/savepoint", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		_ = effect(r.Context(), tx, run)
		err := tx.BeginFunc(r.Context(), func(inner pgx.Tx) error {
			_ = effect(r.Context(), inner, run)
			_, err := inner.Exec(r.Context(), "SELECT 1/0")
			return err
		})
		note(run, "savepoint: %v", err)
		w.WriteHeader(http.StatusCreated)
	})
	goCases(mux, route, guard)
	construct(requests)
	mux.HandleFunc("/notes/", func(w http.ResponseWriter, r *http.Request) {
		notes.Lock()
		defer notes.Unlock()
		fmt.Fprint(w, strings.Join(notes.of[strings.TrimPrefix(r.URL.Path, "/notes/")], "\n"))
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+port, mux))
}

// construct makes every mistake that Protect can recognise.
func construct(requests *idempotence.Requests) {
	handler := http.HandlerFunc(http.NotFound)
	for _, mistake := range []func(){
		func() { idempotence.Key{Requests: requests}.Protect(nil) },
		func() { idempotence.Key{}.Protect(handler) },
		func() { idempotence.Key{Requests: idempotence.New(requests.Pool, "")}.Protect(handler) },
		func() { idempotence.Key{Requests: idempotence.New(nil, "cases")}.Protect(handler) },
		func() { idempotence.Key{Requests: requests, HandlerTimeout: -1}.Protect(handler) },
	} {
		func() {
			defer func() { note("construction", "%v", recover()) }()
			mistake()
		}()
	}
}

// late uses everything that the handler has obtained, after the handler has returned.
func late(ctx context.Context, tx pgx.Tx, run string) {
	inner := must(tx.Begin(ctx))
	batch := &pgx.Batch{}
	batch.Queue("SELECT 1")
	results := tx.SendBatch(ctx, batch)
	_ = results.Close()
	rows := must(tx.Query(ctx, "SELECT generate_series(1, 3)"))
	rows.Next()
	rows.Close()
	go func() {
		time.Sleep(300 * time.Millisecond)
		ctx := context.Background()
		_, err := tx.Exec(ctx, "INSERT INTO client_effect VALUES ($1, 3)", run)
		note(run, "late: %v", err)
		_, err = inner.Exec(ctx, "INSERT INTO client_effect VALUES ($1, 3)", run)
		note(run, "late: %v", err)
		_, err = tx.Query(ctx, "INSERT INTO client_effect VALUES ($1, 3)", run)
		note(run, "late: %v", err)
		var none int
		note(run, "late: %v", tx.QueryRow(ctx, "INSERT INTO client_effect VALUES ($1, 3) RETURNING 1", run).Scan(&none))
		_, err = tx.SendBatch(ctx, batch).Exec()
		note(run, "late: %v", err)
		_, err = results.Exec()
		note(run, "late: %v", err)
		_, err = tx.CopyFrom(ctx, pgx.Identifier{"client_effect"}, []string{"run", "amount"}, pgx.CopyFromRows(nil))
		note(run, "late: %v", err)
		_, err = tx.Begin(ctx)
		note(run, "late: %v", err)
		_, err = tx.Prepare(ctx, "late", "SELECT 1")
		note(run, "late: %v", err)
		rows.Next()
		note(run, "late: %v", rows.Err())
		note(run, "late: %v", inner.Rollback(ctx))
	}()
}

// goCases are routes that only Go can have.
func goCases(mux *http.ServeMux, route func(string, handler), guard idempotence.Key) {
	route("/open-rows", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		_ = effect(r.Context(), tx, run)
		must(tx.Query(r.Context(), "SELECT generate_series(1, 3)")).Next() // and never Close
		w.WriteHeader(http.StatusCreated)
	})
	route("/early-hints", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		created(w, r, tx, run)
	})
	route("/interfaces", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		_, flusher := w.(http.Flusher)
		_, hijacker := w.(http.Hijacker)
		controlled, _ := w.(interface{ FlushError() error })
		note(run, "flusher %v, hijacker %v, %v", flusher, hijacker, controlled.FlushError())
		created(w, r, tx, run)
	})
	route("/events", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		w.Header().Set("Content-Type", "text/event-stream")
		for r.Context().Err() == nil {
			fmt.Fprint(w, "data: 1\n\n")
			time.Sleep(20 * time.Millisecond)
		}
	})
	route("/fail-final", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		created(w, r, tx, run)
		idempotence.Fail(r.Context(), idempotence.Final{Response: "x"})
	})
	route("/fail-late", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		created(w, r, tx, run)
		go func() {
			time.Sleep(100 * time.Millisecond)
			idempotence.Fail(r.Context(), errors.New("too late"))
		}()
	})
	route("/conn", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		conn := tx.Conn()
		created(w, r, tx, run)
		go func() {
			time.Sleep(300 * time.Millisecond)
			_, err := conn.Exec(context.Background(), "INSERT INTO client_effect VALUES ($1, 3)", run)
			note(run, "conn: %v", err)
		}()
	})
	route("/close-driver", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		created(w, r, tx, run)
		_ = tx.Conn().Close(r.Context())
	})
	route("/headers", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		w.Header().Set("Content-Length", "3")
		w.Header()["etag"] = []string{`"1"`}
		w.Header().Add("Vary", "Accept")
		created(w, r, tx, run)
		w.Header().Set("Location", "/too-late")
		w.WriteHeader(http.StatusInternalServerError)
	})
	// The three ways in which net/http sends trailers.
	route("/trailer-announced", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		w.Header().Set("Trailer", "X-Sum")
		created(w, r, tx, run)
		w.Header().Set("X-Sum", "1")
	})
	route("/trailer-prefix", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		created(w, r, tx, run)
		w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
	})
	route("/trailer-early-prefix", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
		created(w, r, tx, run)
	})
	route("/no-content", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		_ = effect(r.Context(), tx, run)
		w.WriteHeader(http.StatusNoContent)
		_, err := fmt.Fprint(w, "body")
		note(run, "%v", err)
	})
	route("/sniffed", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		fmt.Fprint(w, "<!DOCTYPE html><p>hello</p>")
	})
	route("/disconnect", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		created(w, r, tx, run)
		time.Sleep(1500 * time.Millisecond)
	})
	route("/methods", func(w http.ResponseWriter, r *http.Request, tx pgx.Tx, run string) {
		ctx := r.Context()
		batch := &pgx.Batch{}
		batch.Queue("INSERT INTO client_effect VALUES ($1, 1) RETURNING amount", run)
		batch.Queue("SELECT 7")
		results := tx.SendBatch(ctx, batch)
		var one, seven int
		err := results.QueryRow().Scan(&one)
		rows, err2 := results.Query()
		for rows.Next() {
			_ = rows.Scan(&seven)
		}
		note(run, "batch: %d %d %v %v %v %v", one, seven, err, err2, rows.Err(), results.Close())
		source := pgx.CopyFromRows([][]any{{run, 2}, {run, 3}})
		copied, err := tx.CopyFrom(ctx, pgx.Identifier{"client_effect"}, []string{"run", "amount"}, source)
		note(run, "copy: %d %v", copied, err)
		sum := 0
		tag, err := tx.QueryFunc(ctx, "SELECT amount FROM client_effect WHERE run = $1", []any{run}, []any{&one},
			func(pgx.QueryFuncRow) error { sum += one; return nil })
		note(run, "query: %d %s %v", sum, tag, err)
		inner := must(tx.Begin(ctx))
		_ = effect(ctx, inner, run)
		note(run, "nested: %v %v", inner.Rollback(ctx), inner.Rollback(ctx))
		_, err = inner.Exec(ctx, "SELECT 1")
		note(run, "closed: %v", err)
		note(run, "none: %v", tx.QueryRow(ctx, "SELECT 1 WHERE false").Scan(&one))
		w.WriteHeader(http.StatusCreated)
	})
	slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		run := string(must(io.ReadAll(r.Body)))
		note(run, "call")
		_ = effect(r.Context(), idempotence.Tx(r.Context()), run)
		_, err := idempotence.Tx(r.Context()).Exec(r.Context(), "SELECT pg_sleep(2)")
		note(run, "statement: %v", err)
	})
	mux.Handle("/timeout-inside", guard.Protect(http.TimeoutHandler(slow, 200*time.Millisecond, "too slow")))
	mux.Handle("/timeout-outside", http.TimeoutHandler(guard.Protect(slow), 200*time.Millisecond, "too slow"))
	target := guard.Protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RequestURI) }))
	mux.Handle("/a/", http.StripPrefix("/a", target))
	mux.Handle("/b/", http.StripPrefix("/b", target))
	mux.HandleFunc("/limited", func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, 10)
		target.ServeHTTP(w, r)
	})
	mux.HandleFunc("/parsed", func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			log.Panic(err)
		}
		target.ServeHTTP(w, r)
	})
	headers := guard.Protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Vary", "Accept")
		w.Header().Del("X-Removed")
		w.WriteHeader(http.StatusCreated)
	}))
	mux.HandleFunc("/middleware", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Origin")
		w.Header().Set("X-Frame-Options", "DENY")
		w.Header().Set("X-Removed", "by the handler")
		w.Header().Set("Trailer", "X-Took")
		headers.ServeHTTP(w, r)
		w.Header().Set("X-Took", "1")
	})
}
