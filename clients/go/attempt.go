package idempotence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgconn/stmtcache"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
)

// An attempt at a request is one transaction of three parts: (BEGIN, idem_begin, SAVEPOINT), the statements of the
// work, and (idem_record, COMMIT). The statements in parentheses are sent as one pipeline, so that they cost one round
// trip. The server skips the rest of a pipeline after an error.

const (
	savepoint = "SAVEPOINT idempotence_work"
	undo      = "ROLLBACK TO SAVEPOINT idempotence_work"
	begin     = "SELECT status, response::text, (extract(epoch FROM expires_at) * 1000)::bigint, point," +
		" pg_current_xact_id_if_assigned() IS NOT NULL" +
		" FROM idem_begin($1::text, $2::text, payload => $3::text::jsonb, wait => $4::text::interval)"
	record = "SELECT FROM idem_record($1::text, $2::text, $3::text::jsonb, failed => $4::boolean," +
		" ttl => $5::text::interval)"
)

type request struct {
	key, payload any
	wait         time.Duration
}

// failure is an error of the work. Its cause is hidden from errors.As: an InProgress or an SQLSTATE in it belongs to
// another request or to another database.
type failure struct{ cause error }

func (f failure) Error() string { return f.cause.Error() }

// unrecorded is a refusal that could not be recorded in its own transaction: a context of the work has ended, which
// makes pgx close the connection. It is recorded in a new transaction, and the work is not called again.
type unrecorded struct{ Final }

var (
	errClosed        = errors.New("a statement's context ended, which closed the connection: nothing is kept")
	errHandlerClosed = errors.New("the connection is closed, and the handler has used it directly: nothing is kept")
)

// run attempts a request until it has an answer.
func (r *Requests) run(
	ctx context.Context, request request, patience time.Duration, work Work,
) (answer Answer, err error) {
	err = r.retried(ctx, patience, func(deadline time.Time) error {
		var refusal unrecorded
		if answer, err = r.attempt(ctx, deadline, request, work); errors.As(err, &refusal) {
			// The server needs a moment to notice that the former connection is gone.
			request.wait = 2 * time.Second
			work = func(context.Context, pgx.Tx) (any, error) { return nil, refusal.Final }
			answer, err = r.attempt(ctx, deadline, request, work)
		}
		return err
	})
	return
}

func (r *Requests) attempt(ctx context.Context, deadline time.Time, q request, work Work) (answer Answer, err error) {
	payload, err := encoded(q.payload)
	if err != nil {
		return answer, failure{err}
	}
	conn, err := r.acquire(ctx, deadline)
	if err != nil {
		return answer, err
	}
	c := newConnection(ctx, conn)
	background := false
	defer func() {
		if !background {
			c.close()
		}
	}()
	answer, wrote, err := r.begin(c, q, payload)
	switch {
	case err != nil:
		return answer, err
	case answer.Replayed && !wrote:
		// The caller need not wait for the end of a transaction that only reads: the replay takes one round trip.
		background = true
		go c.commitRead()
		return answer, nil
	case answer.Replayed:
		// The begin may have recorded that the request has failed, after max_attempts; and in the edition for managed
		// services COMMIT waits until the outcome is durable.
		return answer, c.commit()
	}
	value, refused, err := c.do(work)
	if err != nil {
		return answer, err
	}
	return r.record(c, q, value, refused)
}

// do calls the work and takes the connection away from it. It returns the response, and whether the request has failed
// for good.
func (c *connection) do(work Work) (response any, refused bool, err error) {
	response, err = work(c.ctx, c.tx())
	if c.killed.Load() {
		return nil, false, failure{err}
	}
	if err := c.end(c.ctx); err != nil {
		return nil, false, failure{err}
	}
	if c.shared && c.conn.IsClosed() {
		return nil, false, failure{errHandlerClosed}
	}
	var final Final
	if errors.As(err, &final) {
		return final.Response, true, nil
	} else if err != nil {
		return nil, false, c.judged(err)
	}
	return response, false, nil
}

// begin opens the transaction. Without an error and a replay, the caller has the claim. It also returns whether the
// transaction has something to commit.
func (r *Requests) begin(c *connection, q request, payload *string) (answer Answer, wrote bool, err error) {
	arguments := []*string{&r.Session, ref(text(q.key)), payload, seconds(q.wait, true)}
	results, err := c.pipeline(command{"BEGIN", nil}, command{begin, arguments}, command{savepoint, nil})
	if err != nil {
		return answer, false, err
	}
	row := results[1].Rows[0]
	answer.Status = string(row[0])
	switch {
	case answer.Status == "succeeded" || answer.Status == "failed" || answer.Status == "cancelled":
		answer.Replayed = true
		if row[1] != nil {
			answer.Response = append(answer.Response, row[1]...)
		}
	case answer.Status == "in_progress":
		return Answer{}, false, InProgress{q.key, moment(row[2])}
	case answer.Status != "started" || row[3] != nil:
		return Answer{}, false, Interrupted{q.key, string(row[3])}
	}
	return answer, string(row[4]) == "t", nil
}

// record ends the transaction: the outcome is recorded and committed together with the effects of the work.
func (r *Requests) record(c *connection, q request, value any, refused bool) (answer Answer, err error) {
	response, err := encoded(value)
	if err != nil {
		return answer, failure{err}
	}
	if c.cancelled && refused {
		return answer, unrecorded{Final{value}}
	} else if c.cancelled {
		return answer, failure{errClosed}
	}
	failed := "false"
	answer = Answer{Status: "succeeded", Response: decoded(response)}
	if refused {
		failed, answer.Status = "true", "failed"
	}
	var commands []command
	if c.aborted() && refused {
		// The work has handled the error and refuses the request: the refusal is recorded, without effects.
		commands = append(commands, command{undo, nil})
	}
	ttl := seconds(r.TTL, r.TTL > 0)
	commands = append(commands, command{record, []*string{&r.Session, ref(text(q.key)), response, &failed, ttl}})
	if err := c.commit(commands...); err != nil {
		return Answer{}, err
	}
	return answer, nil
}

// unprotected runs the work in a transaction of its own, without a request.
func (r *Requests) unprotected(ctx context.Context, work Work) error {
	conn, err := r.acquire(ctx, time.Now().Add(r.Deadline))
	if err != nil {
		return err
	}
	c := newConnection(ctx, conn)
	defer c.close()
	if _, err := c.pipeline(command{"BEGIN", nil}); err != nil {
		return err
	}
	_, refused, err := c.do(work)
	switch {
	case err != nil:
		return failure{plain(err)} // without a key a retry might repeat the effects
	case refused && (c.cancelled || c.aborted()):
		return nil // the work has handled the error; its effects are rolled back
	case c.cancelled:
		return failure{errClosed}
	}
	if err := c.commit(); err != nil {
		return failure{plain(err)}
	}
	return nil
}

// commit sends the commands and COMMIT. It succeeds only if COMMIT's own reply says so.
func (c *connection) commit(commands ...command) error {
	results, err := c.pipeline(append(commands, command{"COMMIT", nil})...)
	if err != nil {
		return err
	}
	if tag := results[len(results)-1].CommandTag.String(); tag != "COMMIT" {
		return failure{fmt.Errorf("the server answered COMMIT with %s: nothing is kept", tag)}
	}
	return nil
}

// commitRead ends a transaction that has only read, after the caller has its answer.
func (c *connection) commitRead() {
	defer c.close()
	ctx, cancel := context.WithTimeout(context.Background(), release)
	defer cancel()
	c.ctx = ctx
	_ = c.commit()
}

// acquire takes a connection from the pool.
func (r *Requests) acquire(ctx context.Context, deadline time.Time) (*pgxpool.Conn, error) {
	// The first attempt gets a chance even without a deadline.
	if soonest := time.Now().Add(100 * time.Millisecond); deadline.Before(soonest) {
		deadline = soonest
	}
	opening, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	conn, err := r.Pool.Acquire(opening)
	switch {
	case err == nil || ctx.Err() != nil:
		return conn, err
	case state(err) == "":
		return nil, passing{Lost{err}}
	case mayPass(state(err)):
		return nil, passing{err}
	}
	return nil, err
}

type command struct {
	sql       string
	arguments []*string
}

// pipeline sends the commands in one round trip and returns the results of all, or the first error.
func (c *connection) pipeline(commands ...command) ([]*pgconn.Result, error) {
	batch := &pgconn.Batch{}
	for _, each := range commands {
		values := make([][]byte, len(each.arguments))
		for i, argument := range each.arguments {
			if argument != nil {
				values[i] = []byte(*argument)
			}
		}
		name, err := c.prepared(each)
		if err != nil {
			return nil, ours(c.ctx, c.conn, err)
		} else if name != "" {
			batch.ExecPrepared(name, values, nil, nil)
		} else {
			batch.ExecParams(each.sql, values, nil, nil, nil)
		}
	}
	results, err := c.conn.PgConn().ExecBatch(c.ctx, batch).ReadAll()
	for _, result := range results {
		if err == nil {
			err = result.Err
		}
	}
	if cache := c.conn.StatementCache(); err != nil && cache != nil {
		for _, each := range commands {
			cache.StatementErrored(each.sql, err)
		}
	}
	if err == nil && len(results) != len(commands) {
		err = fmt.Errorf("%d results of %d commands", len(results), len(commands))
	}
	return results, ours(c.ctx, c.conn, err)
}

// prepared is the name of the prepared statement for a command, or "" if it is sent as text. pgx prepares a statement
// when a connection first uses it, unless the pool is configured for PgBouncer. It cannot prepare in an aborted
// transaction.
func (c *connection) prepared(command command) (string, error) {
	cache := c.conn.StatementCache()
	if len(command.arguments) == 0 || cache == nil || cache.Mode() != stmtcache.ModePrepare || c.aborted() ||
		c.conn.Config().PreferSimpleProtocol {
		return "", nil
	}
	statement, err := cache.Get(c.ctx, command.sql)
	if err != nil {
		return "", err
	}
	return statement.Name, nil
}

func ref(text string) *string { return &text }

// moment converts milliseconds since 1970.
func moment(milliseconds []byte) *time.Time {
	var number int64
	if _, err := fmt.Sscan(string(milliseconds), &number); err != nil {
		return nil
	}
	at := time.UnixMilli(number)
	return &at
}
