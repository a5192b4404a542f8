package idempotence

import (
	"context"
	"fmt"
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

const preload = "preload: the server does not preload the library, so expired outcomes are not removed: add" +
	" idempotence to shared_preload_libraries and restart, or CALL idem_sweep() at least once an hour"

// Check returns what was found in the database, such as "extension 1.2.0" or "managed 1.2.0", and a sentence for each
// problem that prevents requests. Call it when a service starts.
func (r *Requests) Check(ctx context.Context) (edition string, problems []string) {
	found, err := r.value(ctx, fault)
	if err != nil {
		return "", []string{"unreachable: no connection to the database: " + err.Error()}
	}
	if found != "" {
		return "", []string{found}
	}
	edition, _ = r.value(ctx, "SELECT coalesce((SELECT 'extension ' || extversion FROM pg_extension"+
		" WHERE extname = 'idempotence'), 'managed ' || substring(obj_description(to_regnamespace('idempotence'),"+
		" 'pg_namespace') FROM '[0-9.]+'), '')")
	if strings.HasPrefix(edition, "extension") { // the edition for managed services has neither
		if ready, _ := r.value(ctx, "SELECT idem_ready()::text"); ready != "true" {
			problems = append(problems,
				"ready: no request can be begun now: SELECT * FROM idempotence.health has the reason")
		}
		_, err := r.value(ctx, "SELECT EXISTS (SELECT FROM idempotence.in_flight)::text")
		if state(err) == "55000" {
			problems = append(problems, preload)
		}
	}
	if r.Session != "" {
		_, err := r.value(ctx, "SELECT status FROM idem_lookup($1::text, 'idempotence check')", r.Session)
		switch state(err) {
		case "42704":
			problems = append(problems, fmt.Sprintf(
				"session: there is no session %s: SELECT idem_create_session('%[1]s')", r.Session))
		case "42501":
			problems = append(problems, fmt.Sprintf("rights: this role may not use the session %s:"+
				" its owner lends it by idem_alter_session('%[1]s', usable_by => …)", r.Session))
		case "ID012":
			problems = append(problems, fmt.Sprintf("session: the session %s lives on another server: %v", r.Session, err))
		}
	}
	// Only a monitor can read whether the database is swept.
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
