// Makes a retried request take effect exactly once, over JDBC. Copy the files of this folder into your program and
// put the line of your package in front of each. They need JDK 17 or later, PostgreSQL's driver, and the extension
// idempotence or its pure-SQL edition for managed services.
//
//     var payments = new Idempotence(pool, "payments");       // pool: a javax.sql.DataSource, for example HikariCP's
//     var answer = payments.run(key, payloadAsJson, connection -> { …; return responseAsJson; });
//
// JSON is passed as text, so any JSON library can be used. These files contain no rules of their own: the same
// statements sent by hand behave in the same way (docs/reference.md).

import java.sql.Array;
import java.sql.Connection;
import java.sql.SQLException;
import java.sql.Timestamp;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import javax.sql.DataSource;

/**
 * Executes the requests of one session.
 *
 * @param waits how long an attempt waits in the database for another lock holder, on its connection
 * @param deadline how long errors that may pass are retried; the pool's own timeout is added to it
 * @param ttl how long an outcome is kept; null: the session's ttl
 */
public record Idempotence(DataSource pool, String session, Duration waits, Duration deadline, Duration ttl) {
    public Idempotence {
        Objects.requireNonNull(pool, "Idempotence needs a pool: new Idempotence(dataSource, session)");
        Objects.requireNonNull(waits, "waits is missing");
        Objects.requireNonNull(deadline, "deadline is missing");
    }

    public Idempotence(DataSource pool, String session) {
        this(pool, session, Duration.ofMillis(200), Duration.ofSeconds(30), null);
    }

    /**
     * The user's part of a request, on the connection of its transaction. Returns the response as JSON, or null. The
     * connection refuses every call after the work has returned, also from other threads.
     */
    public interface Work {
        String on(Connection connection) throws Exception;
    }

    /** The outcome of a request: succeeded, failed or cancelled. lookup can return any other status, too. */
    public record Answer(String status, String response, boolean replayed) {}

    /** Thrown by the work: the request has failed for good. The response is recorded, with all that was written. */
    public static final class Final extends Exception {
        final String response;

        public Final(String response) {
            this.response = response;
        }
    }

    /** Another process was executing the request until the wait was over. Send it again later, unchanged. */
    public static final class InProgress extends Exception {
        /** When the lease of the lock holder expires, if it holds a lease. */
        public final Instant expiresAt;

        InProgress(Object key, Instant expiresAt) {
            super("the request " + key + " is still in progress");
            this.expiresAt = expiresAt;
        }
    }

    /**
     * A lock holder stopped in the middle of the request. It may have had effects outside of the database, so the
     * request is not executed.
     */
    public static final class Interrupted extends Exception {
        public final String point;

        Interrupted(Object key, String point) {
            super("the request " + key + " stopped " + (point == null ? "in the middle" : "at " + point)
                    + ": take it over with a lease and check what has happened");
            this.point = point;
        }
    }

    private static final Set<String> OUTCOMES = Set.of("succeeded", "failed", "cancelled");

    private static final String BEGIN = """
            SELECT status, response::text, expires_at, point, pg_current_xact_id_if_assigned() IS NOT NULL
            FROM idem_begin(?, ?, payload => CAST(? AS jsonb), wait => CAST(? AS interval));
            SAVEPOINT idempotence_work""";
    private static final String UNDO = "ROLLBACK TO SAVEPOINT idempotence_work; ";
    private static final String RECORD = """
            SELECT idem_record(?, ?, CAST(? AS jsonb), failed => CAST(? AS boolean), ttl => CAST(? AS interval))""";

    /**
     * Executes a request once: the work and its response are one transaction, and run returns after COMMIT has
     * returned. An exception of the work rolls everything back, except {@link Final}. The work is called again only
     * if the connection of its transaction was lost, or if that connection raised an error that may pass, such as a
     * serialization failure.
     *
     * @param key text, a number or a java.util.UUID, which the caller made before the first attempt
     * @param payload JSON, or null
     */
    public Answer run(Object key, String payload, Work work) throws Exception {
        return plain(() -> retried(deadline, () -> attempt(key, payload, waits, work)));
    }

    /** The state of a request. Begins nothing. Waits for a lock holder; null: for the setting idempotence.wait. */
    public Answer lookup(Object key, Duration wait) throws Exception {
        return plain(() -> retried(Duration.ZERO, () -> lookedUp(key, wait)));
    }

    Answer lookedUp(Object key, Duration wait) throws Exception {
        String sql = "SELECT status, response::text FROM idem_lookup(?, ?, wait => CAST(? AS interval))";
        Object[] row = queried(sql, session, key, interval(wait)).get(0);
        return new Answer((String) row[0], (String) row[1], false);
    }

    /** Those keys that an inbox sees for the first time, in your transaction: process, commit, acknowledge. */
    public static <K> List<K> once(Connection connection, String session, List<K> keys) throws SQLException {
        Array texts = connection.createArrayOf("text", keys.stream().map(key -> Objects.toString(key, null)).toArray());
        String sql = "SELECT ord FROM idem_once_many(?, ?) ORDER BY ord";
        List<Object[]> fresh = Transaction.rows(connection, sql, session, texts);
        return fresh.stream().map(row -> keys.get(((Number) row[0]).intValue() - 1)).toList();
    }

    /** What was found in the database, such as "extension 1.2.0", and a sentence for each problem. */
    public record Check(String edition, List<String> problems) {}

    /** The query for what prevents every request. It returns the sentences of the other clients, or '' if nothing. */
    private static final String FAULT = """
            SELECT coalesce((
              SELECT CASE WHEN lacks IS NOT NULL THEN 'rights: role ' || current_user || ' lacks ' || lacks
                            || ': SELECT idem_grant(' || quote_literal(quote_ident(current_user)) || ') as ' || owner
                          WHEN NOT visible THEN 'search_path: it lacks ' || nspname
                            || ', the schema of the functions: set it'
                          ELSE '' END
              FROM (SELECT nspname, pg_function_is_visible(p.oid) AS visible, pg_get_userbyid(proowner) AS owner,
                           CASE WHEN NOT has_schema_privilege(n.oid, 'USAGE') THEN 'USAGE on schema ' || nspname
                                WHEN NOT has_function_privilege(p.oid, 'EXECUTE') THEN 'EXECUTE on ' || proname
                           END AS lacks
                    FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace
                    WHERE proname IN ('idem_begin', 'idem_lookup', 'idem_ready', 'idem_record')) f
              ORDER BY visible DESC, lacks LIMIT 1),
              'extension: this database has none: CREATE EXTENSION idempotence, or install its edition in SQL')
            """;

    private static final String PRELOAD = "preload: the server does not preload the library, so expired outcomes are"
            + " not removed: add idempotence to shared_preload_libraries and restart, or CALL idem_sweep() at least once"
            + " an hour";

    /** What prevents requests. Call it when a service starts. */
    public Check check() {
        Object fault = value(FAULT);
        if (fault instanceof Exception) {
            return new Check(null, List.of("unreachable: no connection to the database: " + fault));
        }
        if (!fault.equals("")) {
            return new Check(null, List.of((String) fault));
        }
        List<String> problems = new ArrayList<>();
        String edition = String.valueOf(value("SELECT coalesce((SELECT 'extension ' || extversion FROM pg_extension"
                + " WHERE extname = 'idempotence'), 'managed ' || substring(obj_description("
                + "to_regnamespace('idempotence'), 'pg_namespace') FROM '[0-9.]+'))"));
        if (edition.startsWith("extension")) { // the edition for managed services has neither
            if (!Boolean.TRUE.equals(value("SELECT idem_ready()"))) {
                problems.add("ready: no request can be begun now: SELECT * FROM idempotence.health has the reason");
            }
            if ("55000".equals(state(value("SELECT EXISTS (SELECT FROM idempotence.in_flight)")))) {
                problems.add(PRELOAD);
            }
        }
        if (session != null) {
            Object found = value("SELECT status FROM idem_lookup(?, 'idempotence check')", session);
            switch (Objects.requireNonNullElse(state(found), "")) {
                case "42704" -> problems.add("session: there is no session %s: SELECT idem_create_session('%1$s')"
                        .formatted(session));
                case "42501" -> problems.add(("rights: this role may not use the session %s: its owner lends it by"
                        + " idem_alter_session('%1$s', usable_by => …)").formatted(session));
                case "ID012" -> problems.add("session: the session " + session + " lives on another server: " + found);
                default -> { }
            }
        }
        // Only a monitor can read whether the database is swept.
        String sweep = "SELECT detail || '; ' || hint FROM idempotence.health WHERE name = 'sweep' AND level > 0";
        if (value(sweep) instanceof String late) {
            problems.add("sweep: " + late);
        }
        return new Check(edition, problems);
    }

    /** The first value that a query returns, or the error. */
    private Object value(String sql, Object... arguments) {
        try {
            List<Object[]> rows = plain(() -> queried(sql, arguments));
            return rows.isEmpty() ? null : rows.get(0)[0];
        } catch (Exception error) {
            return error;
        }
    }

    private List<Object[]> queried(String sql, Object... arguments) throws Exception {
        try (var transaction = new Transaction(pool)) {
            return transaction.query(sql, arguments);
        }
    }

    interface Step<T> {
        T on(Connection connection) throws Exception;
    }

    interface Attempt<T> {
        T make() throws Exception;
    }

    /** Throws the errors themselves, without their classification. */
    static <T> T plain(Attempt<T> attempt) throws Exception {
        try {
            return attempt.make();
        } catch (Transaction.Passing | Transaction.WorkFailed classified) {
            throw classified.getCause() instanceof Exception cause ? cause : classified;
        }
    }

    /**
     * Makes attempts until one succeeds or fails for a reason that does not pass. While another lock holder works, it
     * asks again for as long as patience.
     */
    <T> T retried(Duration patience, Attempt<T> attempt) throws Exception {
        long began = System.nanoTime();
        for (int count = 0;; count++) {
            try {
                return attempt.make();
            } catch (InProgress | Transaction.Passing error) {
                Duration within = error instanceof InProgress ? patience : deadline;
                long left = within.toMillis() - (System.nanoTime() - began) / 1_000_000;
                if (left <= 0) {
                    throw error;
                }
                long pause = Math.min(50L << Math.min(count, 10), 2000);
                Thread.sleep(Math.min(left, ThreadLocalRandom.current().nextLong(pause / 2, pause)));
            }
        }
    }

    /** Begins, works and records in one transaction. */
    Answer attempt(Object key, String payload, Duration waits, Work work) throws Exception {
        return attempt(key, payload, waits, (transaction, connection) -> work.on(connection));
    }

    /** A work that may end its transaction from another thread. */
    interface LimitedWork {
        String on(Transaction transaction, Connection connection) throws Exception;
    }

    Answer attempt(Object key, String payload, Duration waits, LimitedWork work) throws Exception {
        var transaction = new Transaction(pool);
        boolean background = false;
        try {
            Object[] ticket = transaction.query(BEGIN, session, key, payload, interval(waits)).get(0);
            Answer answer = new Answer((String) ticket[0], (String) ticket[1], OUTCOMES.contains((String) ticket[0]));
            boolean wrote = (Boolean) ticket[4];
            if (answer.replayed && !wrote) {
                // The caller need not wait for the end of a transaction that only reads: the replay takes one round
                // trip.
                background = true;
                transaction.commitInBackground();
                return answer;
            } else if (answer.replayed) {
                // The begin may have recorded that the request has failed, after max_attempts; and in the edition for
                // managed services COMMIT waits until the outcome is durable.
                transaction.commit("SELECT 1");
                return answer;
            } else if (answer.status.equals("in_progress")) {
                throw new InProgress(key, ticket[2] == null ? null : ((Timestamp) ticket[2]).toInstant());
            } else if (!answer.status.equals("started") || ticket[3] != null) {
                throw new Interrupted(key, (String) ticket[3]);
            }
            try {
                String response = transaction.work(connection -> work.on(transaction, connection));
                answer = new Answer("succeeded", response, false);
            } catch (Final refused) {
                answer = new Answer("failed", refused.response, false);
            }
            record(transaction, key, answer);
            return answer;
        } finally {
            if (!background) {
                transaction.close();
            }
        }
    }

    /** Commits the outcome together with the effects of the work. */
    private void record(Transaction transaction, Object key, Answer answer) throws Exception {
        boolean failed = answer.status.equals("failed");
        // A work that has handled an error of the database and refuses the request is recorded without effects.
        String undo = failed && transaction.aborted() ? UNDO : "";
        transaction.commit(undo + RECORD, session, key, answer.response, failed, interval(ttl));
    }

    /** Runs the work in a transaction without a request. A refusal whose transaction was aborted has no effects. */
    void unprotected(LimitedWork work) throws Exception {
        try (var transaction = new Transaction(pool)) {
            try {
                transaction.work(connection -> work.on(transaction, connection));
            } catch (Final refusal) {
                if (transaction.aborted()) {
                    return;
                }
            }
            // The driver does not report that the server answered COMMIT with ROLLBACK. The SELECT does.
            transaction.commit("SELECT 1");
        }
    }

    static String state(Object error) {
        return Transaction.state(error);
    }

    private static String interval(Duration duration) {
        return duration == null ? null : duration.toMillis() + " milliseconds";
    }
}
