package idempotence

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
)

var (
	errEnded = errors.New("the transaction of this request has ended: work that continues after the" +
		" handler has returned needs a transaction of its own")
	errBusy   = errors.New("conn busy: another goroutine is using the transaction")
	errMisuse = errors.New("the handler must not commit or roll back: the adapter commits after the answer" +
		" is recorded; use tx.Begin for a part that may be rolled back")
)

// release is how long the end of a transaction waits for the server or for a goroutine that does not return.
const release = 5 * time.Second

// connection is the connection of one transaction while the work uses it. The work reaches it only through
// transaction, rows and batch, which call enter and leave. No goroutine of the work can use the connection after end,
// when it belongs to this package again and then to the next request.
type connection struct {
	ctx    context.Context
	pooled *pgxpool.Conn
	conn   *pgx.Conn

	using      chan struct{} // holds an element while a call uses the connection
	ended      atomic.Bool
	killed     atomic.Bool
	open       closer // the last result, which the work may not have read to its end
	savepoints int

	transient map[*pgconn.PgError]bool // the errors of the server that a retry may not meet
	cancelled bool                     // a context of the work ended during a statement, so pgx has closed the connection
	shared    bool                     // the work has seen the connection itself and may have kept it
	misuse    error                    // the work has tried to commit or to roll back
}

type closer interface{ close() }

func newConnection(ctx context.Context, pooled *pgxpool.Conn) *connection {
	return &connection{ctx: ctx, pooled: pooled, conn: pooled.Conn(), using: make(chan struct{}, 1),
		transient: map[*pgconn.PgError]bool{}}
}

func (c *connection) tx() *transaction { return &transaction{connection: c} }

// enter begins a call of the work. pgx refuses concurrent use of a connection, too.
func (c *connection) enter() error {
	select {
	case c.using <- struct{}{}:
	default:
		return errBusy
	}
	if c.ended.Load() {
		c.leave()
		return errEnded
	}
	return nil
}

func (c *connection) leave() { <-c.using }

// note keeps what an error of a statement says about a retry. ctx is the context that the work has passed.
func (c *connection) note(ctx context.Context, err error) error {
	var raised *pgconn.PgError
	if errors.As(err, &raised) && mayPass(raised.Code) {
		c.transient[raised] = true
	}
	if err != nil && c.conn.IsClosed() && ctx.Err() != nil && c.ctx.Err() == nil {
		c.cancelled = true
	}
	return err
}

// aborted reports whether the server refuses further statements of the transaction.
func (c *connection) aborted() bool { return c.conn.PgConn().TxStatus() == 'E' }

// end takes the connection away from the work. It waits for a statement that another goroutine is executing.
func (c *connection) end(ctx context.Context) error {
	select {
	case c.using <- struct{}{}:
	case <-ctx.Done():
		c.kill()
		return ctx.Err()
	}
	defer c.leave()
	if c.ended.Swap(true) {
		return c.misuse
	}
	if c.open != nil {
		c.open.close()
	}
	return c.misuse
}

// kill ends the transaction while a goroutine of the work may still use it. Its statement is cancelled. The connection
// stays open until then: PgBouncer drops requests to cancel for clients that have gone.
func (c *connection) kill() {
	c.killed.Store(true)
	c.ended.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.conn.PgConn().CancelRequest(ctx)
	_ = c.conn.PgConn().Conn().Close()
}

// close gives the connection back, also after a panic. It rolls back what is not committed.
func (c *connection) close() {
	ctx, cancel := context.WithTimeout(context.Background(), release)
	defer cancel()
	defer c.pooled.Release() // closes the connection if its transaction is still open
	if c.end(ctx) == context.DeadlineExceeded {
		return // a goroutine hangs in a call; its socket is closed
	}
	if !c.conn.IsClosed() && c.conn.PgConn().TxStatus() != 'I' {
		_, _ = c.conn.Exec(ctx, "ROLLBACK")
	}
	if c.shared {
		_ = c.conn.Close(ctx)
	}
}
