package idempotence

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
)

// transaction is the pgx.Tx that the work receives, or a savepoint in it. It behaves as the one of pgx with three
// exceptions: it refuses every call after the work has returned; its Commit and Rollback are refused, except those of a
// savepoint; and large objects are available by SQL functions only.
type transaction struct {
	*connection
	savepoint string
	closed    bool
}

func (t *transaction) enter() error {
	if t.closed {
		return pgx.ErrTxClosed
	}
	return t.connection.enter()
}

// use calls f while no other goroutine can use the connection.
func (t *transaction) use(ctx context.Context, f func(*pgx.Conn) error) error {
	if err := t.enter(); err != nil {
		return err
	}
	defer t.leave()
	return t.note(ctx, f(t.conn))
}

// keep remembers a result that the work may not read to its end. pgx refuses a second one while the first is open.
func (t *transaction) keep(result closer) {
	if !t.conn.PgConn().IsBusy() {
		t.open = result
	}
}

func (t *transaction) Begin(ctx context.Context) (pgx.Tx, error) {
	inner := &transaction{connection: t.connection}
	err := t.use(ctx, func(conn *pgx.Conn) error {
		t.savepoints++
		inner.savepoint = fmt.Sprintf("sp_%d", t.savepoints)
		_, err := conn.Exec(ctx, "SAVEPOINT "+inner.savepoint)
		return err
	})
	if err != nil {
		return nil, err
	}
	return inner, nil
}

func (t *transaction) BeginFunc(ctx context.Context, f func(pgx.Tx) error) (err error) {
	inner, err := t.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if rolledBack := inner.Rollback(ctx); rolledBack != nil && !errors.Is(rolledBack, pgx.ErrTxClosed) {
			err = rolledBack
		}
	}()
	if err := f(inner); err != nil {
		_ = inner.Rollback(ctx)
		return err
	}
	return inner.Commit(ctx)
}

func (t *transaction) Commit(ctx context.Context) error { return t.finish(ctx, "RELEASE SAVEPOINT ") }
func (t *transaction) Rollback(ctx context.Context) error {
	return t.finish(ctx, "ROLLBACK TO SAVEPOINT ")
}

func (t *transaction) finish(ctx context.Context, how string) error {
	return t.use(ctx, func(conn *pgx.Conn) error {
		if t.savepoint == "" {
			t.misuse = errMisuse
			return errMisuse
		}
		t.closed = true
		_, err := conn.Exec(ctx, how+t.savepoint)
		return err
	})
}

func (t *transaction) Exec(ctx context.Context, sql string, arguments ...any) (tag pgconn.CommandTag, err error) {
	err = t.use(ctx, func(conn *pgx.Conn) (err error) {
		tag, err = conn.Exec(ctx, sql, arguments...)
		return
	})
	return
}

func (t *transaction) Query(ctx context.Context, sql string, arguments ...any) (pgx.Rows, error) {
	result := &rows{tx: t, ctx: ctx}
	err := t.use(ctx, func(conn *pgx.Conn) (err error) {
		t.keep(result)
		result.rows, err = conn.Query(ctx, sql, arguments...)
		return
	})
	if result.rows == nil {
		result.err = err
	}
	return result, err
}

func (t *transaction) QueryRow(ctx context.Context, sql string, arguments ...any) pgx.Row {
	result, _ := t.Query(ctx, sql, arguments...)
	return row{result}
}

func (t *transaction) QueryFunc(
	ctx context.Context, sql string, arguments []any, scans []any, f func(pgx.QueryFuncRow) error,
) (pgconn.CommandTag, error) {
	result, err := t.Query(ctx, sql, arguments...)
	if err != nil {
		return nil, err
	}
	return each(result, scans, f)
}

func (t *transaction) Prepare(
	ctx context.Context, name, sql string,
) (prepared *pgconn.StatementDescription, err error) {
	err = t.use(ctx, func(conn *pgx.Conn) (err error) {
		prepared, err = conn.Prepare(ctx, name, sql)
		return
	})
	return
}

func (t *transaction) CopyFrom(
	ctx context.Context, table pgx.Identifier, columns []string, source pgx.CopyFromSource,
) (count int64, err error) {
	err = t.use(ctx, func(conn *pgx.Conn) (err error) {
		count, err = conn.CopyFrom(ctx, table, columns, source)
		return
	})
	return
}

func (t *transaction) SendBatch(ctx context.Context, queries *pgx.Batch) pgx.BatchResults {
	result := &batch{tx: t, ctx: ctx}
	result.err = t.use(ctx, func(conn *pgx.Conn) error {
		t.keep(result)
		result.results = conn.SendBatch(ctx, queries)
		return nil
	})
	return result
}

// LargeObjects panics: pgx can bind them only to a transaction that pgx has begun itself.
func (t *transaction) LargeObjects() pgx.LargeObjects {
	panic("idempotence: a protected transaction has no LargeObjects: call the SQL functions lo_from_bytea, lo_get, …")
}

// Conn returns the connection itself, which cannot refuse late calls. It is therefore closed after the request
// instead of being returned to the pool.
func (t *transaction) Conn() *pgx.Conn {
	if t.enter() != nil {
		panic(errEnded)
	}
	defer t.leave()
	t.shared = true
	return t.conn
}
