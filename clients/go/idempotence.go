// Package idempotence makes a retried request take effect exactly once, over pgx 4. It is a client of the PostgreSQL
// extension idempotence and of its pure-SQL edition for managed services. Copy the files of this package into your
// program; pgx 5 has not been tested.
//
//	payments := idempotence.New(pool, "payments") // pool: a *pgxpool.Pool
//	answer, err := payments.Run(ctx, key, payload, func(ctx context.Context, tx pgx.Tx) (any, error) {
//		…
//		return response, nil
//	})
//
// The package contains no rules of its own. The same statements sent by hand behave in the same way
// (docs/reference.md).
package idempotence

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
)

// Requests executes the requests of one session.
type Requests struct {
	Pool     *pgxpool.Pool
	Session  string
	Wait     time.Duration // how long an attempt waits in the database for another lock holder, on its connection
	Deadline time.Duration // how long errors that may pass are retried
	TTL      time.Duration // how long an outcome is kept; 0: the session's ttl
}

// New returns Requests with the default waits.
func New(pool *pgxpool.Pool, session string) *Requests {
	return &Requests{Pool: pool, Session: session, Wait: 200 * time.Millisecond, Deadline: 30 * time.Second}
}

// Work is the user's part of a request. It runs in the transaction of the request, and what it returns is recorded as
// JSON. The transaction refuses every call after the work has returned, also from goroutines that the work has started.
type Work func(ctx context.Context, tx pgx.Tx) (any, error)

// Answer is the outcome of a request: succeeded, failed or cancelled. Lookup can return any other status, too.
type Answer struct {
	Status   string
	Response json.RawMessage // nil: no response was recorded
	Replayed bool
}

// Final is returned by a Work whose request has failed for good. The response is recorded, together with everything
// that the work has written.
type Final struct{ Response any }

func (f Final) Error() string { return fmt.Sprintf("failed for good: %v", f.Response) }

// InProgress means that another process was executing the request until the wait was over. Send it again later, with
// the same key and payload.
type InProgress struct {
	Key       any
	ExpiresAt *time.Time // when the lease of the lock holder expires, if it holds a lease
}

func (p InProgress) Error() string { return fmt.Sprintf("the request %v is still in progress", p.Key) }

// Interrupted means that a lock holder stopped in the middle of the request. It may have had effects outside of the
// database, so Run does not execute the request. Take it over with a lease and check what has happened.
type Interrupted struct {
	Key   any
	Point string // the last checkpoint
}

func (i Interrupted) Error() string {
	return fmt.Sprintf("the request %v stopped in the middle (%q)", i.Key, i.Point)
}

// Lost means that the connection was lost or that the pool had none. Whether the request has taken effect is not known.
// A retry with the same key finds out.
type Lost struct{ Cause error }

func (l Lost) Error() string { return "the connection is lost: " + l.Cause.Error() }
func (l Lost) Unwrap() error { return l.Cause }

// Run executes a request once. The work and its response are one transaction, and Run returns after COMMIT has
// returned. An error or a panic of the work rolls everything back, except Final. The key is a string, a number or a
// UUID ([16]byte) that the caller made before the first attempt. A nil payload is no payload.
//
// The work is called again only if the connection of its transaction was lost, or if the server answered a statement of
// this transaction with an error that may pass, such as a serialization failure.
func (r *Requests) Run(ctx context.Context, key, payload any, work Work) (Answer, error) {
	answer, err := r.run(ctx, request{key: key, payload: payload, wait: r.Wait}, r.Deadline, work)
	return answer, plain(err)
}

// Lookup returns the state of a request and begins nothing. It waits up to `wait` for a lock holder; a negative wait
// stands for the setting idempotence.wait.
func (r *Requests) Lookup(ctx context.Context, key any, wait time.Duration) (answer Answer, err error) {
	err = r.retried(ctx, 0, func(deadline time.Time) error {
		answer, err = r.lookup(ctx, deadline, key, seconds(wait, wait >= 0))
		return err
	})
	return answer, plain(err)
}

func (r *Requests) lookup(ctx context.Context, deadline time.Time, key any, wait *string) (answer Answer, err error) {
	sql := "SELECT status, response::text FROM idem_lookup($1::text, $2::text, wait => $3::text::interval)"
	err = r.query(ctx, deadline, func(row pgx.Row) error {
		var response *string
		err := row.Scan(&answer.Status, &response)
		answer.Response = decoded(response)
		return err
	}, sql, r.Session, text(key), wait)
	return
}

// Once returns the indexes of those keys that an inbox sees for the first time, in the caller's transaction. Process
// these messages, commit, and then acknowledge all of them.
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

// query runs one statement outside of a transaction and passes its row to scan.
func (r *Requests) query(
	ctx context.Context, deadline time.Time, scan func(pgx.Row) error, sql string, arguments ...any,
) error {
	conn, err := r.acquire(ctx, deadline)
	if err != nil {
		return err
	}
	defer conn.Release()
	return ours(ctx, conn.Conn(), scan(conn.QueryRow(ctx, sql, arguments...)))
}

// text is the key in the form that the database uses. A UUID is written in lower case.
func text(key any) string {
	if uuid, is := key.([16]byte); is {
		return fmt.Sprintf("%x-%x-%x-%x-%x", uuid[:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:])
	}
	return fmt.Sprint(key)
}

// encoded is a value as JSON. nil stands for no payload or no response, which is not the same as JSON's null.
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

// noRows reports whether a query returned nothing.
func noRows(err error) bool { return errors.Is(err, pgx.ErrNoRows) }
