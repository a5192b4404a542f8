package idempotence

import (
	"context"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgproto3/v2"
	"github.com/jackc/pgx/v4"
)

// rows are the rows of a query of the work. Like the transaction, they refuse every call after the work has returned.
type rows struct {
	tx   *transaction
	ctx  context.Context
	rows pgx.Rows
	err  error
}

// use calls f while no other goroutine can use the connection.
func (r *rows) use(f func(pgx.Rows)) error {
	if r.rows == nil {
		return r.err
	}
	if err := r.tx.connection.enter(); err != nil {
		r.err = err
		return err
	}
	defer r.tx.leave()
	f(r.rows)
	_ = r.tx.note(r.ctx, r.rows.Err())
	return nil
}

// close reads the rest. The caller has the connection.
func (r *rows) close() {
	if r.rows != nil {
		r.rows.Close()
	}
}

func (r *rows) Close() { _ = r.use(pgx.Rows.Close) }

func (r *rows) Err() (err error) {
	if r.err != nil {
		return r.err
	}
	if refused := r.use(func(rows pgx.Rows) { err = rows.Err() }); refused != nil {
		return refused
	}
	return err
}

func (r *rows) Next() (more bool) {
	_ = r.use(func(rows pgx.Rows) { more = rows.Next() })
	return more
}

func (r *rows) Scan(targets ...any) (err error) {
	if refused := r.use(func(rows pgx.Rows) { err = rows.Scan(targets...) }); refused != nil {
		return refused
	}
	return err
}

func (r *rows) Values() (values []any, err error) {
	if refused := r.use(func(rows pgx.Rows) { values, err = rows.Values() }); refused != nil {
		return nil, refused
	}
	return values, err
}

func (r *rows) RawValues() (values [][]byte) {
	_ = r.use(func(rows pgx.Rows) { values = rows.RawValues() })
	return values
}

func (r *rows) CommandTag() (tag pgconn.CommandTag) {
	_ = r.use(func(rows pgx.Rows) { tag = rows.CommandTag() })
	return tag
}

func (r *rows) FieldDescriptions() (fields []pgproto3.FieldDescription) {
	_ = r.use(func(rows pgx.Rows) { fields = rows.FieldDescriptions() })
	return fields
}

// row is the first row of a query.
type row struct{ rows pgx.Rows }

func (r row) Scan(targets ...any) error {
	defer r.rows.Close()
	if err := r.rows.Err(); err != nil {
		return err
	}
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(targets...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

// each calls f for every row. It holds the connection only between the calls, so f gets pgx's own errors if it uses the
// transaction meanwhile.
func each(rows pgx.Rows, scans []any, f func(pgx.QueryFuncRow) error) (pgconn.CommandTag, error) {
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(scans...); err != nil {
			return nil, err
		}
		if err := f(rows); err != nil {
			return nil, err
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	return rows.CommandTag(), nil
}

// batch is the results of a batch of the work.
type batch struct {
	tx      *transaction
	ctx     context.Context
	results pgx.BatchResults
	err     error
}

func (b *batch) use(f func(pgx.BatchResults) error) error {
	if b.results == nil {
		return b.err
	}
	if err := b.tx.connection.enter(); err != nil {
		return err
	}
	defer b.tx.leave()
	return b.tx.note(b.ctx, f(b.results))
}

// close reads the rest. The caller has the connection.
func (b *batch) close() { _ = b.results.Close() }

func (b *batch) Close() error { return b.use(pgx.BatchResults.Close) }

func (b *batch) Exec() (tag pgconn.CommandTag, err error) {
	err = b.use(func(results pgx.BatchResults) (err error) {
		tag, err = results.Exec()
		return
	})
	return
}

func (b *batch) Query() (pgx.Rows, error) {
	result := &rows{tx: b.tx, ctx: b.ctx}
	err := b.use(func(results pgx.BatchResults) (err error) {
		result.rows, err = results.Query()
		return
	})
	if result.rows == nil {
		result.err = err
	}
	return result, err
}

func (b *batch) QueryRow() pgx.Row {
	result, _ := b.Query()
	return row{result}
}

func (b *batch) QueryFunc(scans []any, f func(pgx.QueryFuncRow) error) (pgconn.CommandTag, error) {
	result, err := b.Query()
	if err != nil {
		return nil, err
	}
	return each(result, scans, f)
}
