// Package idempotence makes a retried request take effect once, over pgx 4: the client of the PostgreSQL extension
// idempotence, and of its edition for managed services. Copy the file into your program; pgx 5 was not tried.
//
//	payments := idempotence.New(pool, "payments") // pool: a *pgxpool.Pool
//	answer, err := payments.Run(ctx, key, payload, func(ctx context.Context, tx pgx.Tx) (any, error) {
//		…
//		return response, nil
//	})
//
// No rule is kept here: what a call does, the same statements by hand do too (docs/reference.md).
package idempotence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
)

// Requests are those of one session.
type Requests struct {
	Pool     *pgxpool.Pool
	Session  string
	Wait     time.Duration // how long an attempt waits in the database for somebody else, on its connection
	Deadline time.Duration // how long what may be retried is retried
	TTL      time.Duration // how long an outcome is kept; 0: as the session says
}

// New has the usual waits.
func New(pool *pgxpool.Pool, session string) *Requests {
	return &Requests{Pool: pool, Session: session, Wait: 200 * time.Millisecond, Deadline: 30 * time.Second}
}

// Work is the user's part of a request, in its transaction. What it returns is recorded as JSON.
type Work func(ctx context.Context, tx pgx.Tx) (any, error)

// Answer is what became of a request: succeeded, failed (for good) or cancelled; from Lookup any other status, too.
type Answer struct {
	Status   string
	Response json.RawMessage // nil: there is none
	Replayed bool
}

// Final is an error of the work: the request has failed for good. The response is recorded, with all that was written.
type Final struct{ Response any }

func (f Final) Error() string { return fmt.Sprintf("failed for good: %v", f.Response) }

// InProgress tells that somebody else is at work, and the wait is over. Ask again later, with the same key and payload.
type InProgress struct {
	Key       any
	ExpiresAt *time.Time // when the lease of who is at work runs out, if it is a lease
}

func (p InProgress) Error() string { return fmt.Sprintf("the request %v is still in progress", p.Key) }

// Interrupted tells that somebody stopped in the middle. An effect elsewhere may have happened, so the request is not
// simply executed: take it over with a lease, and look what happened.
type Interrupted struct {
	Key   any
	Point string // the last checkpoint
}

func (i Interrupted) Error() string {
	return fmt.Sprintf("the request %v stopped in the middle (%q)", i.Key, i.Point)
}

// Lost tells that the connection is gone, or that none could be had: nobody knows what happened. The retry finds out.
type Lost struct{ Cause error }

func (l Lost) Error() string { return "the connection is lost: " + l.Cause.Error() }
func (l Lost) Unwrap() error { return l.Cause }

// Run executes a request once: the work and its response are one transaction, and the answer comes after COMMIT has
// returned. An error or a panic of the work takes all back, but for Final. The key is a string, a number or a UUID
// ([16]byte) that the caller made before the first attempt. A payload of nil is none.
func (r *Requests) Run(ctx context.Context, key, payload any, work Work) (answer Answer, err error) {
	err = r.retried(ctx, r.Deadline, func(tx pgx.Tx) (err error) {
		answer, err = r.executed(ctx, tx, key, payload, r.Wait, work)
		return
	})
	return
}

// Lookup tells what is known of a request. It begins nothing, and waits up to `wait` for who is at work; with a
// negative one as long as the database's setting says.
func (r *Requests) Lookup(ctx context.Context, key any, wait time.Duration) (answer Answer, err error) {
	sql := "SELECT status, response::text FROM idem_lookup($1::text, $2::text, wait => $3::text::interval)"
	err = r.retried(ctx, r.Deadline, func(tx pgx.Tx) error {
		var response *string
		err := tx.QueryRow(ctx, sql, r.Session, text(key), seconds(wait, wait >= 0)).Scan(&answer.Status, &response)
		answer.Response = decoded(response)
		return err
	})
	return
}

// Once gives the places of those of the keys that an inbox sees for the first time, in the caller's transaction. Work
// for them, commit, and then acknowledge.
func Once(ctx context.Context, tx pgx.Tx, session string, keys []any) (fresh []int, err error) {
	texts := make([]string, len(keys))
	for i, key := range keys {
		texts[i] = text(key)
	}
	rows, err := tx.Query(ctx, "SELECT ord::int FROM idem_once_many($1::text, $2::text[]) ORDER BY ord", session, texts)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var place int
		if err = rows.Scan(&place); err != nil {
			return nil, err
		}
		fresh = append(fresh, place-1)
	}
	return fresh, rows.Err()
}

// What stands in the way of every request, in the same words in each client: "" if nothing does.
const fault = `SELECT coalesce((
  SELECT CASE WHEN lacks IS NOT NULL THEN 'rights: role ' || current_user || ' lacks ' || lacks || ': SELECT idem_grant('
                || quote_literal(quote_ident(current_user)) || ') as ' || owner
              WHEN NOT visible THEN 'search_path: it lacks ' || nspname || ', the schema of the functions: set it'
              ELSE '' END
  FROM (SELECT nspname, pg_function_is_visible(p.oid) AS visible, pg_get_userbyid(proowner) AS owner,
               CASE WHEN NOT has_schema_privilege(n.oid, 'USAGE') THEN 'USAGE on schema ' || nspname
                    WHEN NOT has_function_privilege(p.oid, 'EXECUTE') THEN 'EXECUTE on ' || proname END AS lacks
        FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace
        WHERE proname IN ('idem_begin', 'idem_lookup', 'idem_ready', 'idem_record')) f
  ORDER BY visible DESC, lacks LIMIT 1),
  'extension: this database has none: CREATE EXTENSION idempotence, or install its edition in SQL')`

// Check tells what stands in the way of requests: a sentence for each fault, none if all is well; and what it has found,
// such as "extension 1.2.0" or "managed 1.2.0". For the start of a service.
func (r *Requests) Check(ctx context.Context) (edition string, problems []string) {
	told, err := r.asked(ctx, fault)
	if err != nil {
		return "", []string{"unreachable: no connection to the database can be had: " + err.Error()}
	}
	if told != "" {
		return "", []string{told}
	}
	edition, _ = r.asked(ctx, "SELECT coalesce((SELECT 'extension ' || extversion FROM pg_extension"+
		" WHERE extname = 'idempotence'), 'managed ' || substring(obj_description(to_regnamespace('idempotence'),"+
		" 'pg_namespace') FROM '[0-9.]+'), '')")
	// The edition for managed services has no readiness to ask for.
	if strings.HasPrefix(edition, "extension") {
		if ready, _ := r.asked(ctx, "SELECT idem_ready()::text"); ready != "true" {
			problems = append(problems,
				"ready: no request can be begun here now: SELECT * FROM idempotence.health tells why")
		}
	}
	if r.Session != "" && problems == nil {
		_, err := r.asked(ctx, "SELECT status FROM idem_lookup($1::text, 'idempotence check')", r.Session)
		switch state(err) {
		case "42704", "ID012":
			problems = append(problems, "session: "+r.Session+" is not to be found here: "+err.Error())
		case "42501":
			problems = append(problems, "rights: this role may not use the session "+r.Session+
				": its owner lends it by idem_alter_session(…, usable_by => …)")
		}
	}
	// Of the extension, who is no monitor cannot see whether somebody sweeps.
	sweep := "SELECT detail || '; ' || hint FROM idempotence.health WHERE name = 'sweep' AND level > 0"
	if late, err := r.asked(ctx, sweep); err == nil && late != "" {
		problems = append(problems, "sweep: "+late)
	}
	return edition, problems
}

// asked gives the first value, "" if there is none.
func (r *Requests) asked(ctx context.Context, sql string, arguments ...any) (value string, err error) {
	err = r.transaction(ctx, time.Now().Add(5*time.Second), func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, sql, arguments...).Scan(&value)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	return
}

// retried does the same transaction until it has committed. patience: how long to ask again while somebody else is at
// work.
func (r *Requests) retried(ctx context.Context, patience time.Duration, step func(pgx.Tx) error) error {
	began := time.Now()
	for count := 0; ; count++ {
		err := r.transaction(ctx, began.Add(r.Deadline), step)
		within, busy := r.Deadline, errors.As(err, &InProgress{})
		if busy {
			within = patience
		}
		left := time.Until(began.Add(within))
		if err == nil || left <= 0 || ctx.Err() != nil || !(busy || mayRetry(err)) {
			return err
		}
		pause := 2 * time.Second
		if count < 6 {
			pause = 50 * time.Millisecond << count
		}
		// Seeded here: before Go 1.20 all processes would draw the same numbers.
		drawn := rand.New(rand.NewSource(time.Now().UnixNano())).Float64()
		pause = time.Duration((0.5 + drawn/2) * float64(pause))
		if pause > left {
			pause = left
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (r *Requests) transaction(ctx context.Context, deadline time.Time, step func(pgx.Tx) error) error {
	// The first attempt gets its chance also where there is no deadline.
	if soonest := time.Now().Add(100 * time.Millisecond); deadline.Before(soonest) {
		deadline = soonest
	}
	opening, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	conn, err := r.Pool.Acquire(opening)
	if err != nil {
		return lost(ctx, err)
	}
	// Gives the connection up if the transaction is still open, also after a panic of the work: the server rolls back.
	defer conn.Release()
	tx, err := conn.Begin(ctx)
	if err == nil {
		if err = step(tx); err == nil {
			// Deferred constraints and a begun request without its record are refused here.
			err = tx.Commit(ctx)
		}
	}
	if err != nil {
		if tx != nil {
			_ = tx.Rollback(ctx)
		}
		// Whatever the work made of it: no COMMIT could follow on a connection that is gone.
		if conn.Conn().IsClosed() {
			return lost(ctx, err)
		}
	}
	return err
}

// lost is for an error of a connection that is gone. One with an SQLSTATE, and one of the caller's context, tells more.
func lost(ctx context.Context, err error) error {
	if state(err) != "" || ctx.Err() != nil {
		return err
	}
	return Lost{err}
}

func (r *Requests) executed(
	ctx context.Context, tx pgx.Tx, key, payload any, wait time.Duration, work Work,
) (Answer, error) {
	sql := "SELECT status, response::text, expires_at, point" +
		" FROM idem_begin($1::text, $2::text, payload => $3::text::jsonb, wait => $4::text::interval)"
	asked, err := encoded(payload)
	if err != nil {
		return Answer{}, err
	}
	var answer Answer
	var response, point *string
	var expires *time.Time
	row := tx.QueryRow(ctx, sql, r.Session, text(key), asked, seconds(wait, true))
	if err := row.Scan(&answer.Status, &response, &expires, &point); err != nil {
		return Answer{}, err
	}
	switch {
	case answer.Status == "succeeded" || answer.Status == "failed" || answer.Status == "cancelled":
		answer.Response, answer.Replayed = decoded(response), true
		return answer, nil
	case answer.Status == "in_progress":
		return Answer{}, InProgress{key, expires}
	case answer.Status != "started" || point != nil:
		at := ""
		if point != nil {
			at = *point
		}
		return Answer{}, Interrupted{key, at}
	}
	value, err := work(ctx, tx)
	answer.Status = "succeeded"
	if refused := (Final{}); errors.As(err, &refused) {
		answer.Status, value, err = "failed", refused.Response, nil
	}
	if err != nil {
		return Answer{}, err
	}
	if response, err = encoded(value); err != nil {
		return Answer{}, err
	}
	answer.Response = decoded(response)
	sql = "SELECT FROM idem_record($1::text, $2::text, $3::text::jsonb, failed => $4, ttl => $5::text::interval)"
	_, err = tx.Exec(ctx, sql, r.Session, text(key), response, answer.Status == "failed", seconds(r.TTL, r.TTL > 0))
	return answer, err
}

// "What to retry" in docs/reference.md. 57014 is not in it: what was cancelled may take as long again.
var retry = regexp.MustCompile("^(08|25P03|40001|40P01|53|55P03|57P0[1-35])")

func mayRetry(err error) bool {
	return errors.As(err, &Lost{}) || retry.MatchString(state(err))
}

// state is the SQLSTATE of an error, also of one that was wrapped. "": it has none.
func state(err error) string {
	var of *pgconn.PgError
	if errors.As(err, &of) {
		return of.Code
	}
	return ""
}

// text is a key as the database has it: a UUID in lower case.
func text(key any) string {
	if uuid, is := key.([16]byte); is {
		return fmt.Sprintf("%x-%x-%x-%x-%x", uuid[:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:])
	}
	return fmt.Sprint(key)
}

// encoded is a value as JSON. nil is no payload and no response, and not JSON's null.
func encoded(value any) (*string, error) {
	if value == nil {
		return nil, nil
	}
	bytes, err := json.Marshal(value)
	encoded := string(bytes)
	return &encoded, err
}

func decoded(response *string) json.RawMessage {
	if response == nil {
		return nil
	}
	return json.RawMessage(*response)
}

func seconds(duration time.Duration, given bool) *string {
	if !given {
		return nil
	}
	text := fmt.Sprintf("%f seconds", duration.Seconds())
	return &text
}
