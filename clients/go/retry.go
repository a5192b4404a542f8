package idempotence

import (
	"context"
	"errors"
	"math/rand"
	"regexp"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
)

// passing is an error of the transaction's own connection that a new attempt may not meet. Only these are retried:
// errors of other connections, of other databases and of the application are not.
type passing struct{ cause error }

func (p passing) Error() string { return p.cause.Error() }
func (p passing) Unwrap() error { return p.cause }

// "What to retry" in docs/reference.md. 57014 is missing because a cancelled statement may take as long again.
var transient = regexp.MustCompile("^(08|25P03|40001|40P01|53|55P03|57P0[1-35])")

func mayPass(state string) bool { return transient.MatchString(state) }

// state is the SQLSTATE of an error, which may be wrapped, or "" if it has none.
func state(err error) string {
	var of *pgconn.PgError
	if errors.As(err, &of) {
		return of.Code
	}
	return ""
}

// ours classifies an error that a statement of this package met on its connection.
func ours(ctx context.Context, conn *pgx.Conn, err error) error {
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case mayPass(state(err)):
		return passing{err}
	case conn.IsClosed() && state(err) == "":
		return passing{Lost{err}}
	}
	return err
}

// judged classifies an error that the work has returned.
func (c *connection) judged(err error) error {
	var raised *pgconn.PgError
	switch {
	case c.ctx.Err() != nil || c.cancelled:
		return failure{err}
	case c.conn.IsClosed() && state(err) == "":
		return passing{Lost{err}}
	case c.conn.IsClosed():
		return passing{err}
	case errors.As(err, &raised) && c.transient[raised]:
		return passing{err}
	}
	return failure{err}
}

// plain removes the classification.
func plain(err error) error {
	switch err := err.(type) {
	case passing:
		return err.cause
	case failure:
		return err.cause
	}
	return err
}

// retried makes attempts until one succeeds or fails for a reason that does not pass. While another lock holder
// works, it asks again for as long as patience.
func (r *Requests) retried(ctx context.Context, patience time.Duration, attempt func(time.Time) error) error {
	began := time.Now()
	for count := 0; ; count++ {
		err := attempt(began.Add(r.Deadline))
		within := r.Deadline
		if errors.As(err, &InProgress{}) {
			within = patience
		} else if !errors.As(err, &passing{}) {
			return err
		}
		left := time.Until(began.Add(within))
		if left <= 0 || ctx.Err() != nil {
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
