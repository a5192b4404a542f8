// The application in Go that rates.py measures: served URI PORT. POST /unprotected inserts a key in a transaction, and
// POST /protected does the same through the adapter.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"

	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
	"idempotence"
)

func main() {
	config, err := pgxpool.ParseConfig(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	config.MaxConns = 8
	pool, err := pgxpool.ConnectConfig(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	guard := idempotence.Key{Requests: idempotence.New(pool, "chaos")}
	http.Handle("/protected", guard.Protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := insert(r, idempotence.Tx(r.Context()))
		if err != nil {
			idempotence.Fail(r.Context(), err)
			return
		}
		answer(w, n)
	})))
	http.HandleFunc("/unprotected", func(w http.ResponseWriter, r *http.Request) {
		var n int64
		err := pool.BeginFunc(r.Context(), func(tx pgx.Tx) (err error) {
			n, err = insert(r, tx)
			return err
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		answer(w, n)
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[2], nil))
}

func insert(r *http.Request, tx pgx.Tx) (n int64, err error) {
	var body struct{ Key string }
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		return 0, err
	}
	row := tx.QueryRow(r.Context(), "INSERT INTO chaos_effect (key) VALUES ($1) RETURNING n", body.Key)
	err = row.Scan(&n)
	return n, err
}

func answer(w http.ResponseWriter, n int64) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"n": %d}`, n)
}
