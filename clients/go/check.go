package idempotence

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v4"
)

// fault is the query for what prevents every request. It returns the same sentences as the clients for other languages,
// or ” if nothing does.
const fault = `SELECT coalesce((
  SELECT CASE WHEN lacks IS NOT NULL THEN 'rights: role ' || current_user || ' lacks ' || lacks
                || ': SELECT idem_grant(' || quote_literal(quote_ident(current_user)) || ') as ' || owner
              WHEN NOT visible THEN 'search_path: it lacks ' || nspname || ', the schema of the functions: set it'
              ELSE '' END
  FROM (SELECT nspname, pg_function_is_visible(p.oid) AS visible, pg_get_userbyid(proowner) AS owner,
               CASE WHEN NOT has_schema_privilege(n.oid, 'USAGE') THEN 'USAGE on schema ' || nspname
                    WHEN NOT has_function_privilege(p.oid, 'EXECUTE') THEN 'EXECUTE on ' || proname END AS lacks
        FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace
        WHERE proname IN ('idem_begin', 'idem_lookup', 'idem_ready', 'idem_record')) f
  ORDER BY visible DESC, lacks LIMIT 1),
  'extension: this database has none: CREATE EXTENSION idempotence, or install its edition in SQL')`

// notPreloaded fails with 55000 if the extension's library is not preloaded and pg_cron is not installed.
const notPreloaded = `SELECT count(*)::text FROM idempotence.errors WHERE to_regclass('cron.job') IS NULL`

// Check returns what was found in the database, such as "extension 1.2.0" or "managed 1.2.0", and a sentence for each
// problem that prevents requests. Call it when a service starts.
func (r *Requests) Check(ctx context.Context) (edition string, problems []string) {
	found, err := r.value(ctx, fault)
	if err != nil {
		return "", []string{"unreachable: no connection to the database can be had: " + err.Error()}
	}
	if found != "" {
		return "", []string{found}
	}
	edition, _ = r.value(ctx, "SELECT coalesce((SELECT 'extension ' || extversion FROM pg_extension"+
		" WHERE extname = 'idempotence'), 'managed ' || substring(obj_description(to_regnamespace('idempotence'),"+
		" 'pg_namespace') FROM '[0-9.]+'), '')")
	// The edition for managed services has no function idem_ready.
	if strings.HasPrefix(edition, "extension") {
		if ready, _ := r.value(ctx, "SELECT idem_ready()::text"); ready != "true" {
			problems = append(problems,
				"ready: no request can be begun here now: SELECT * FROM idempotence.health tells why")
		}
	}
	if r.Session != "" && problems == nil {
		_, err := r.value(ctx, "SELECT status FROM idem_lookup($1::text, 'idempotence check')", r.Session)
		switch state(err) {
		case "42704", "ID012":
			problems = append(problems, "session: "+r.Session+" is not to be found here: "+err.Error())
		case "42501":
			problems = append(problems, "rights: this role may not use the session "+r.Session+
				": its owner lends it by idem_alter_session(…, usable_by => …)")
		}
	}
	if _, err := r.value(ctx, notPreloaded); state(err) == "55000" {
		problems = append(problems, "sweep: the library is not preloaded, so a scheduler has to CALL idem_sweep()")
	}
	// Roles without the monitor level cannot see this row of the extension's view.
	sweep := "SELECT detail || '; ' || hint FROM idempotence.health WHERE name = 'sweep' AND level > 0"
	if late, err := r.value(ctx, sweep); err == nil && late != "" {
		problems = append(problems, "sweep: "+late)
	}
	return edition, problems
}

// value is the first value that a query returns, or "" if it returns none.
func (r *Requests) value(ctx context.Context, sql string, arguments ...any) (value string, err error) {
	err = r.query(ctx, time.Now().Add(5*time.Second), func(row pgx.Row) error {
		if err := row.Scan(&value); !noRows(err) {
			return err
		}
		return nil
	}, sql, arguments...)
	return value, plain(err)
}
