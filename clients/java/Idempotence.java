// Makes a retried request take effect once, over JDBC. One file, to be copied into your program, with the line
// of its package in front: JDK 17, PostgreSQL's driver, the extension idempotence (or its edition for managed
// services), and nothing else.
//
//     var payments = new Idempotence(pool, "payments");       // pool: a javax.sql.DataSource, HikariCP's for example
//     var answer = payments.run(key, payloadAsJson, connection -> { …; return responseAsJson; });
//
// JSON comes and goes as text, so any library for JSON does. No rule is kept here: what a call does, the same
// statements by hand do too (docs/reference.md).

import java.sql.Array;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.SQLRecoverableException;
import java.sql.SQLTransientConnectionException;
import java.sql.SQLTransientException;
import java.sql.Timestamp;
import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.Set;
import java.util.concurrent.ThreadLocalRandom;
import java.util.regex.Pattern;
import javax.sql.DataSource;

/**
 * The requests of one session.
 *
 * @param waits how long an attempt waits in the database for somebody else, on its connection
 * @param deadline how long what may be retried is retried; the time that the pool takes to give up comes on top
 * @param ttl how long an outcome is kept; null: as the session says
 */
public record Idempotence(DataSource pool, String session, Duration waits, Duration deadline, Duration ttl) {
    public Idempotence(DataSource pool, String session) {
        this(pool, session, Duration.ofMillis(200), Duration.ofSeconds(30), null);
    }

    /** The user's part of a request, on the transaction's connection. Returns the response as JSON, or null. */
    public interface Work {
        String on(Connection connection) throws Exception;
    }

    /** What became of a request: succeeded, failed (for good) or cancelled; from lookup any other status, too. */
    public record Answer(String status, String response, boolean replayed) {}

    /** Thrown by the work: the request has failed for good. The response is recorded, with all that was written. */
    public static final class Final extends Exception {
        final String response;

        public Final(String response) {
            this.response = response;
        }
    }

    /** Somebody else is at work, and the wait is over. Ask again later, with the same key and payload. */
    public static final class InProgress extends Exception {
        /** When the lease of who is at work runs out, if it is a lease. */
        public final Instant expiresAt;

        InProgress(Object key, Instant expiresAt) {
            super("the request " + key + " is still in progress");
            this.expiresAt = expiresAt;
        }
    }

    /** Somebody stopped in the middle. An effect elsewhere may have happened, so the request is not simply executed. */
    public static final class Interrupted extends Exception {
        public final String point;

        Interrupted(Object key, String point) {
            super("the request " + key + " stopped " + (point == null ? "in the middle" : "at " + point)
                    + ": take it over with a lease, and look what happened");
            this.point = point;
        }
    }

    private static final Set<String> OUTCOMES = Set.of("succeeded", "failed", "cancelled");
    // "What to retry" in docs/reference.md. 57014 is not in it: what was cancelled may take as long again.
    private static final Pattern RETRY = Pattern.compile("08|25P03|40001|40P01|53|55P03|57P0[1-35]");

    /**
     * Executes a request once: the work and its response are one transaction, and the answer comes after COMMIT has
     * returned. An exception of the work takes all back, but for {@link Final}.
     *
     * @param key text, a number or a java.util.UUID, which the caller made before the first attempt
     * @param payload JSON, or null
     */
    public Answer run(Object key, String payload, Work work) throws Exception {
        return retried(deadline, connection -> executed(connection, key, payload, waits, work));
    }

    /** What is known of a request. Begins nothing. Waits for who is at work; null: as the database's setting says. */
    public Answer lookup(Object key, Duration wait) throws Exception {
        String sql = "SELECT status, response::text FROM idem_lookup(?, ?, wait => CAST(? AS interval))";
        Object[] row = retried(deadline, connection -> query(connection, sql, session, key, interval(wait)).get(0));
        return new Answer((String) row[0], (String) row[1], false);
    }

    /** Those of the keys that an inbox sees for the first time, in your transaction: work, commit, acknowledge. */
    public static <K> List<K> once(Connection connection, String session, List<K> keys) throws SQLException {
        Array texts = connection.createArrayOf("text", keys.stream().map(key -> Objects.toString(key, null)).toArray());
        List<Object[]> fresh = query(connection, "SELECT ord FROM idem_once_many(?, ?) ORDER BY ord", session, texts);
        return fresh.stream().map(row -> keys.get(((Number) row[0]).intValue() - 1)).toList();
    }

    /** What was found, such as "extension 1.2.0" or "managed 1.2.0", and a sentence for each fault. */
    public record Check(String edition, List<String> problems) {}

    /** What stands in the way of every request, in the same words in each client: '' if nothing does. */
    private static final String FAULT = """
            SELECT coalesce((
              SELECT CASE WHEN lacks IS NOT NULL THEN 'rights: role ' || current_user || ' lacks ' || lacks
                            || ': SELECT idem_grant(' || quote_literal(quote_ident(current_user)) || ') as ' || owner
                          WHEN NOT visible THEN 'search_path: it lacks ' || nspname || ', the schema of the functions: set it'
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

    /** What stands in the way of requests. For the start of a service. */
    public Check check() {
        Object fault = asked(FAULT);
        if (fault instanceof Exception) {
            return new Check(null, List.of("unreachable: no connection to the database can be had: " + fault));
        }
        if (!fault.equals("")) {
            return new Check(null, List.of((String) fault));
        }
        List<String> problems = new ArrayList<>();
        String edition = String.valueOf(asked("SELECT coalesce((SELECT 'extension ' || extversion FROM pg_extension"
                + " WHERE extname = 'idempotence'), 'managed ' || substring(obj_description("
                + "to_regnamespace('idempotence'), 'pg_namespace') FROM '[0-9.]+'))"));
        // The edition for managed services has no readiness to ask for.
        Object ready = edition.startsWith("extension") ? asked("SELECT idem_ready()") : true;
        if (!Boolean.TRUE.equals(ready)) {
            problems.add("ready: no request can be begun here now: SELECT * FROM idempotence.health tells why");
        }
        Object found = session == null || !problems.isEmpty() ? null
                : asked("SELECT status FROM idem_lookup(?, 'idempotence check')", session);
        String why = String.valueOf(state(found));
        if (why.matches("42704|ID012")) {
            problems.add("session: " + session + " is not to be found here: " + found);
        } else if (why.equals("42501")) {
            problems.add("rights: this role may not use the session " + session
                    + ": its owner lends it by idem_alter_session(…, usable_by => …)");
        }
        // Of the extension, who is no monitor cannot see whether somebody sweeps.
        String sweep = "SELECT detail || '; ' || hint FROM idempotence.health WHERE name = 'sweep' AND level > 0";
        if (asked(sweep) instanceof String late) {
            problems.add("sweep: " + late);
        }
        return new Check(edition, problems);
    }

    /** The first value, or the error. */
    private Object asked(String sql, Object... arguments) {
        try {
            List<Object[]> rows = transaction(connection -> query(connection, sql, arguments));
            return rows.isEmpty() ? null : rows.get(0)[0];
        } catch (Exception error) {
            return error;
        }
    }

    interface Step<T> {
        T on(Connection connection) throws Exception;
    }

    /** The same transaction until it has committed. patience: how long to ask again while somebody else is at work. */
    <T> T retried(Duration patience, Step<T> step) throws Exception {
        long began = System.nanoTime();
        for (int count = 0;; count++) {
            try {
                return transaction(step);
            } catch (Exception error) {
                boolean busy = error instanceof InProgress;
                long left = (busy ? patience : deadline).toMillis() - (System.nanoTime() - began) / 1_000_000;
                if (left <= 0 || !(busy || mayRetry(error))) {
                    throw error;
                }
                long pause = Math.min(50L << Math.min(count, 10), 2000);
                Thread.sleep(Math.min(left, ThreadLocalRandom.current().nextLong(pause / 2, pause)));
            }
        }
    }

    <T> T transaction(Step<T> step) throws Exception {
        Connection connection;
        try {
            connection = pool.getConnection();
        } catch (SQLException error) {
            // A pool that has none to give has no SQLSTATE to tell.
            throw state(error) == null ? new SQLTransientConnectionException(error) : error;
        }
        boolean committed = false;
        try {
            connection.setAutoCommit(false);
            T result = step.on(connection);
            connection.commit();
            committed = true;
            return result;
        } finally {
            giveBack(connection, committed);
        }
    }

    /** An error here says nothing of the request: it is committed, or else the server rolls back what is left open. */
    private static void giveBack(Connection connection, boolean committed) {
        try (connection) {
            try {
                if (!committed) {
                    connection.rollback();
                }
                connection.setAutoCommit(true);
            } catch (SQLException broken) {
                connection.abort(Runnable::run); // so that no pool hands an open transaction to the next one
            }
        } catch (SQLException broken) {
            return;
        }
    }

    Answer executed(Connection connection, Object key, String payload, Duration waits, Work work) throws Exception {
        Object[] ticket = query(connection, """
                SELECT status, response::text, expires_at, point
                FROM idem_begin(?, ?, payload => CAST(? AS jsonb), wait => CAST(? AS interval))""",
                session, key, payload, interval(waits)).get(0);
        String status = (String) ticket[0];
        if (OUTCOMES.contains(status)) {
            return new Answer(status, (String) ticket[1], true);
        } else if (status.equals("in_progress")) {
            throw new InProgress(key, ticket[2] == null ? null : ((Timestamp) ticket[2]).toInstant());
        } else if (!status.equals("started") || ticket[3] != null) {
            throw new Interrupted(key, (String) ticket[3]);
        }
        Answer answer;
        try {
            answer = new Answer("succeeded", work.on(connection), false);
        } catch (Final refused) {
            answer = new Answer("failed", refused.response, false);
        }
        query(connection, """
                SELECT idem_record(?, ?, CAST(? AS jsonb), failed => CAST(? AS boolean), ttl => CAST(? AS interval))""",
                session, key, answer.response, answer.status.equals("failed"), interval(ttl));
        return answer;
    }

    static boolean mayRetry(Object error) {
        String state = state(error);
        // Without an SQLSTATE only what says of itself that it passes. The work may throw an SQLException of its own.
        return state == null ? error instanceof SQLTransientException || error instanceof SQLRecoverableException
                : RETRY.matcher(state).lookingAt();
    }

    /** The SQLSTATE of an error, also of one that a layer above JDBC has wrapped. */
    static String state(Object error) {
        Throwable cause = error instanceof Throwable thrown ? thrown : null;
        while (cause != null && !(cause instanceof SQLException sql && sql.getSQLState() != null)) {
            cause = cause.getCause();
        }
        return cause == null ? null : ((SQLException) cause).getSQLState();
    }

    static List<Object[]> query(Connection connection, String sql, Object... arguments) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int i = 0; i < arguments.length; i++) {
                if (arguments[i] instanceof Array array) {
                    statement.setArray(i + 1, array);
                } else {
                    statement.setString(i + 1, arguments[i] == null ? null : arguments[i].toString());
                }
            }
            List<Object[]> rows = new ArrayList<>();
            try (ResultSet result = statement.executeQuery()) {
                Object[] row;
                while (result.next()) {
                    rows.add(row = new Object[result.getMetaData().getColumnCount()]);
                    for (int i = 0; i < row.length; i++) {
                        row[i] = result.getObject(i + 1);
                    }
                }
            }
            return rows;
        }
    }

    private static String interval(Duration duration) {
        return duration == null ? null : duration.toMillis() + " milliseconds";
    }
}
