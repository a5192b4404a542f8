// The program that the tests of the client for Go run. `agent calls` answers each line of standard input, a call of
// vectors.json, with a line of JSON. `agent http PORT` serves the application of http_vectors.json, `agent chaos PORT
// URI` that of the chaos test, and `agent cases PORT` the routes of cases.go.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
	"idempotence"
)

// refused is the application's.
var refused = errors.New("refused")

var (
	pools = map[string]*pgxpool.Pool{}
	lock  sync.Mutex
	calls = map[string]int{}
)

// object keeps the values as they are: a number is text, and a payload goes on unchanged.
type object = map[string]json.RawMessage

type work [][]object

func must[T any](value T, err error) T {
	if err != nil {
		log.Panic(err)
	}
	return value
}

func parsed[T any](raw json.RawMessage) (value T) {
	if err := json.Unmarshal(raw, &value); err != nil {
		log.Panicf("%s: %v", raw, err)
	}
	return
}

func main() {
	switch os.Args[1] {
	case "http":
		serve(os.Args[2])
	case "cases":
		serveCases(os.Args[2])
	case "chaos":
		guard := idempotence.Key{Requests: idempotence.New(pool(os.Args[3]), "chaos")}
		log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[2], guard.Protect(http.HandlerFunc(pay))))
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fmt.Println(string(must(json.Marshal(answered(parsed[object](lines.Bytes()))))))
	}
}

// pool has 4 connections, as an application's. They are made where they are needed.
func pool(uri string) *pgxpool.Pool {
	if pools[uri] == nil {
		config := must(pgxpool.ParseConfig(uri))
		config.MaxConns, config.LazyConnect = 4, true
		pools[uri] = must(pgxpool.ConnectConfig(context.Background(), config))
	}
	return pools[uri]
}

// act does one action of a work.
func act(ctx context.Context, tx pgx.Tx, run string, action object) error {
	for name, raw := range action {
		switch name {
		case "effect":
			if _, err := tx.Exec(ctx, "INSERT INTO client_effect VALUES ($1, $2)", run, parsed[int](raw)); err != nil {
				return err
			}
		case "sql":
			if _, err := tx.Exec(ctx, parsed[string](raw)); err != nil {
				return err
			}
		case "caught":
			if _, err := tx.Exec(ctx, parsed[string](raw)); err == nil {
				log.Panic("a statement that fails was expected")
			}
		case "foreign":
			return foreign(ctx, parsed[string](raw))
		case "sleep":
			time.Sleep(duration(raw))
		case "terminate":
			var pid int
			if err := tx.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
				return err
			}
			must(pool(os.Getenv("IDEM_OWNER")).Exec(ctx, "SELECT pg_terminate_backend($1, 5000)", pid))
		case "raise":
			return refused
		case "pad":
		default:
			log.Panicf("no such action: %s", name)
		}
	}
	return nil
}

// foreign is an error of another connection than that of the transaction.
func foreign(ctx context.Context, kind string) error {
	if kind == "unreachable" {
		_, err := pgconn.Connect(ctx, "postgresql://127.0.0.1:1/none?user=none")
		return err
	}
	_, err := pool(os.Getenv("IDEM_OWNER")).Exec(ctx, "DO $$ BEGIN RAISE SQLSTATE '"+kind+"'; END $$")
	return err
}

func duration(raw json.RawMessage) time.Duration {
	return time.Duration(parsed[float64](raw) * float64(time.Second))
}

func key(raw json.RawMessage) any {
	var text string
	switch raw[0] {
	case '"':
		return parsed[string](raw)
	case '{':
		text = parsed[map[string]string](raw)["uuid"]
	default:
		return parsed[int64](raw)
	}
	return *(*[16]byte)(must(hex.DecodeString(strings.ReplaceAll(text, "-", ""))))
}

// answered makes a call of vectors.json.
func answered(call object) map[string]any {
	works := 0
	told, err := called(call, func(ctx context.Context, tx pgx.Tx) (any, error) {
		works++
		attempts := parsed[work](call["work"])
		if works < len(attempts) {
			attempts = attempts[:works]
		}
		for _, action := range attempts[len(attempts)-1] {
			if value, is := action["return"]; is {
				return given(value), nil
			} else if value, is := action["final"]; is {
				return nil, fmt.Errorf("wrapped: %w", idempotence.Final{Response: given(value)})
			} else if err := act(ctx, tx, parsed[string](call["run"]), action); err != nil {
				return nil, fmt.Errorf("wrapped: %w", err)
			}
		}
		return nil, nil
	})
	if err != nil {
		told = problem(err)
	}
	told["works"] = works
	return told
}

// given is a payload or a response: JSON's null is none.
func given(raw json.RawMessage) any {
	if string(raw) == "null" {
		return nil
	}
	return raw
}

func problem(err error) map[string]any {
	var busy idempotence.InProgress
	var stopped idempotence.Interrupted
	var of *pgconn.PgError
	var unreachable *net.OpError
	switch {
	case errors.As(err, &busy):
		return map[string]any{"error": "in_progress", "expires": busy.ExpiresAt != nil}
	case errors.As(err, &stopped):
		var point any
		if stopped.Point != "" {
			point = stopped.Point
		}
		return map[string]any{"error": "interrupted", "point": point}
	case errors.Is(err, refused):
		return map[string]any{"error": "application"}
	case errors.As(err, &of):
		return map[string]any{"error": of.Code}
	case errors.As(err, &idempotence.Lost{}), errors.As(err, &unreachable):
		return map[string]any{"error": "connection"}
	}
	return map[string]any{"error": err.Error()}
}

func called(call object, work idempotence.Work) (map[string]any, error) {
	ctx, name := context.Background(), parsed[string](call["session"])
	requests := idempotence.New(pool(parsed[string](call["uri"])), name)
	options := map[string]*time.Duration{"wait": &requests.Wait, "deadline": &requests.Deadline, "ttl": &requests.TTL}
	for option, of := range options {
		if raw, is := call[option]; is {
			*of = duration(raw)
		}
	}
	switch parsed[string](call["call"]) {
	case "run":
		return told(requests.Run(ctx, key(call["key"]), given(call["payload"]), work))
	case "lookup":
		wait := -time.Second
		if raw, is := call["wait"]; is {
			wait = duration(raw)
		}
		return told(requests.Lookup(ctx, key(call["key"]), wait))
	case "once":
		return once(ctx, requests, call)
	case "check":
		edition, problems := requests.Check(ctx)
		return map[string]any{"problems": problems, "edition": edition}, nil
	}
	panic("no such call")
}

func told(answer idempotence.Answer, err error) (map[string]any, error) {
	return map[string]any{"status": answer.Status, "replayed": answer.Replayed, "response": answer.Response}, err
}

func once(ctx context.Context, requests *idempotence.Requests, call object) (map[string]any, error) {
	keys, fresh := []any{}, []any{}
	for _, raw := range parsed[[]json.RawMessage](call["keys"]) {
		keys = append(keys, key(raw))
	}
	tx := must(requests.Pool.Begin(ctx))
	defer func() { _ = tx.Rollback(ctx) }()
	places, err := idempotence.Once(ctx, tx, requests.Session, keys)
	for _, place := range places {
		if uuid, is := keys[place].([16]byte); is {
			fresh = append(fresh, fmt.Sprintf("%x-%x-%x-%x-%x", uuid[:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:]))
		} else {
			fresh = append(fresh, fmt.Sprint(keys[place]))
		}
	}
	if _, is := call["rollback"]; err == nil && !is {
		err = tx.Commit(ctx)
	}
	return map[string]any{"new": fresh}, err
}

type route struct {
	Path, Session, SQL, Identity string
	Required                     *bool
	Strict, Answer               bool
	Methods                      []string
	Wait                         float64
	MaxBody                      int64   `json:"max_body"`
	HandlerTimeout               float64 `json:"handler_timeout"`
}

func serve(port string) {
	owner, routes := pool(os.Getenv("IDEM_OWNER")), parsed[[]route](json.RawMessage(os.Getenv("IDEM_ROUTES")))
	mux := http.NewServeMux()
	for _, each := range routes {
		each := each
		if each.SQL != "" {
			mux.HandleFunc(each.Path, func(w http.ResponseWriter, r *http.Request) {
				must(owner.Exec(r.Context(), each.SQL))
			})
			continue
		}
		requests := idempotence.New(owner, each.Session)
		requests.Deadline = 5 * time.Second
		guard := idempotence.Key{Requests: requests, Strict: each.Strict, MaxBody: each.MaxBody, Methods: each.Methods}
		guard.Wait = time.Duration(each.Wait * float64(time.Second))
		guard.HandlerTimeout = time.Duration(each.HandlerTimeout * float64(time.Second))
		guard.Optional = each.Required != nil
		if each.Identity != "" {
			guard.Caller = func(r *http.Request) string { return r.Header.Get(each.Identity) }
		}
		if each.Answer {
			mux.Handle(each.Path, guard.Answer())
			continue
		}
		mux.Handle(each.Path, guard.Protect(http.HandlerFunc(handle)))
	}
	before := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status := r.Header.Get("X-Refuse"); status != "" {
			w.WriteHeader(parsed[int](json.RawMessage(status)))
			return
		}
		mux.ServeHTTP(w, r)
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+port, before))
}

func pay(w http.ResponseWriter, r *http.Request) {
	key, n := parsed[map[string]string](must(io.ReadAll(r.Body)))["key"], 0
	row := idempotence.Tx(r.Context()).QueryRow(r.Context(), "INSERT INTO chaos_effect (key) VALUES ($1) RETURNING n", key)
	if err := row.Scan(&n); err != nil {
		idempotence.Fail(r.Context(), err)
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"n": %d}`, n)
}

func handle(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Run  string
		Work work
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		log.Panic(err)
	}
	lock.Lock()
	calls[body.Run]++
	call := calls[body.Run]
	lock.Unlock()
	if call > len(body.Work) {
		call = len(body.Work)
	}
	for _, action := range body.Work[call-1] {
		if answer, is := action["respond"]; is {
			respond(w, answer)
			return
		} else if err := act(r.Context(), idempotence.Tx(r.Context()), body.Run, action); err != nil {
			idempotence.Fail(r.Context(), err)
			return
		}
	}
}

func respond(w http.ResponseWriter, raw json.RawMessage) {
	answer := parsed[struct {
		Status  int
		Headers map[string]string
		Text    string
		JSON    json.RawMessage
		Base64  []byte
		Fill    int
	}](raw)
	body := append([]byte(answer.Text), answer.Base64...)
	if answer.JSON != nil {
		w.Header().Set("Content-Type", "application/json")
		body = answer.JSON
	}
	for name, value := range answer.Headers {
		w.Header().Set(name, latin1(value))
	}
	w.WriteHeader(answer.Status)
	must(w.Write(append(body, strings.Repeat("x", answer.Fill)...)))
}

// latin1 is the text as the bytes of ISO 8859-1.
func latin1(text string) string {
	bytes := []byte{}
	for _, each := range text {
		bytes = append(bytes, byte(each))
	}
	return string(bytes)
}
