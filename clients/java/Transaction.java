import java.sql.Array;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.SQLNonTransientConnectionException;
import java.sql.SQLRecoverableException;
import java.sql.SQLTimeoutException;
import java.sql.SQLTransientConnectionException;
import java.sql.SQLTransientException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Executor;
import java.util.concurrent.Executors;
import java.util.regex.Pattern;
import javax.sql.DataSource;
import org.postgresql.PGConnection;
import org.postgresql.core.BaseConnection;
import org.postgresql.core.TransactionState;

/**
 * One transaction on a connection of the pool. It has three parts: (BEGIN, idem_begin, SAVEPOINT), the statements of
 * the work, and (idem_record, COMMIT). The driver sends the statements in parentheses together, so that they cost one
 * round trip, and the server skips the rest after an error.
 */
final class Transaction implements AutoCloseable {
    /** How long the end of a transaction waits for a thread of the work that is still using it. */
    private static final Duration RELEASE = Duration.ofSeconds(5);
    private static final Executor BACKGROUND = Executors.newCachedThreadPool(task -> {
        var thread = new Thread(task, "idempotence-commit");
        thread.setDaemon(true);
        return thread;
    });
    // "What to retry" in docs/reference.md. 57014 is missing because a cancelled statement may take as long again.
    private static final Pattern TRANSIENT = Pattern.compile("08|25P03|40001|40P01|53|55P03|57P0[1-35]");

    /** An error of this connection that a new attempt may not meet. Only these are retried. */
    static final class Passing extends Exception {
        Passing(Throwable cause) {
            super(cause);
        }
    }

    /** An error of the work. It is never taken for an error of this connection, whatever its type is. */
    static final class WorkFailed extends Exception {
        WorkFailed(Throwable cause) {
            super(cause);
        }
    }

    private final Connection connection;
    private final HandlerConnection handle;
    private boolean committed;
    private volatile boolean killed;
    /**
     * Whether the work has left its thread interrupted. A COMMIT in such a thread may fail, so the thread gets its
     * interrupt back when the transaction has ended.
     */
    private boolean interrupted;

    /** Takes a connection from the pool. The driver sends BEGIN together with the first statement. */
    Transaction(DataSource pool) throws Passing, SQLException {
        try {
            connection = pool.getConnection();
        } catch (SQLException error) {
            // A pool without a free connection reports no SQLSTATE.
            SQLException known = state(error) == null ? new SQLTransientConnectionException(error) : error;
            if (isTransient(known)) {
                throw new Passing(known);
            }
            throw known;
        }
        handle = new HandlerConnection(connection);
        try {
            connection.setAutoCommit(false);
        } catch (SQLException error) {
            close();
            throw classified(error);
        }
    }

    /** Runs statements of the client itself. Returns the rows of the first one. */
    List<Object[]> query(String sql, Object... arguments) throws Passing, SQLException {
        try {
            return rows(connection, sql, arguments);
        } catch (SQLException error) {
            throw classified(error);
        }
    }

    /** Runs the statements and COMMIT in one round trip. */
    void commit(String sql, Object... arguments) throws Passing, SQLException {
        query(sql + "; COMMIT", arguments);
        committed = true;
    }

    /** Ends a transaction that has only read. The caller need not wait for that. */
    void commitInBackground() {
        BACKGROUND.execute(() -> {
            try (this) {
                commit("SELECT 1");
            } catch (Passing | SQLException broken) {
                return; // nothing was written
            }
        });
    }

    /**
     * Calls the work with a connection that is taken away from it when it returns. Throws WorkFailed, or Passing if the
     * work has failed because of this transaction's connection.
     */
    <T> T work(Idempotence.Step<T> work) throws Passing, WorkFailed, Idempotence.Final {
        T result = null;
        Exception failure = null;
        try {
            result = work.on(handle.proxy());
        } catch (Exception error) {
            failure = error;
        } finally {
            interrupted = Thread.interrupted();
        }
        if (!handle.end(RELEASE)) {
            kill();
        }
        if (killed) {
            throw new WorkFailed(new SQLTimeoutException("the handler or a thread that it has started has exceeded its"
                    + " time limit: the connection is closed and nothing is kept", failure));
        }
        try {
            handle.check();
        } catch (SQLException misuse) {
            throw new WorkFailed(misuse);
        }
        if (handle.shared() && lost()) {
            throw new WorkFailed(new SQLNonTransientConnectionException("the connection is closed, and the handler has"
                    + " used the driver's connection directly: nothing is kept", failure));
        }
        if (failure instanceof Idempotence.Final refused) {
            throw refused;
        } else if (failure != null && (handle.raisedTransient(failure) || lost())) {
            throw new Passing(failure);
        } else if (failure != null) {
            throw new WorkFailed(failure);
        }
        return result;
    }

    /** Closes the connection from another thread, so that its pool replaces it. A statement that is running fails. */
    void kill() {
        killed = true;
        handle.refuse();
        try (connection) {
            try {
                // Otherwise the server holds the claim until the statement ends.
                connection.unwrap(PGConnection.class).cancelQuery();
            } finally {
                connection.abort(Runnable::run);
            }
        } catch (SQLException broken) {
            return; // it is closed already
        }
    }

    /** Whether the server refuses further statements, because one has failed. */
    boolean aborted() {
        try {
            return connection.unwrap(BaseConnection.class).getTransactionState() == TransactionState.FAILED;
        } catch (SQLException lost) {
            return false; // the next statement reports that
        }
    }

    private boolean lost() {
        try {
            // A pool does not notice that the driver's connection is closed.
            return connection.isClosed() || connection.unwrap(Connection.class).isClosed();
        } catch (SQLException broken) {
            return true;
        }
    }

    /** Gives the connection back. Rolls back what is not committed. An error here says nothing about the request. */
    @Override
    public void close() {
        try {
            end();
        } finally {
            if (interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }

    private void end() {
        if (killed || !handle.end(RELEASE)) {
            kill();
            return;
        }
        try (connection) {
            try {
                if (!committed) {
                    connection.rollback();
                }
                if (handle.shared()) {
                    // The work may still use the driver's connection, so no other request may get it.
                    connection.abort(Runnable::run);
                    return;
                }
                connection.setAutoCommit(true);
            } catch (SQLException broken) {
                connection.abort(Runnable::run); // no pool may hand an open transaction to the next request
            }
        } catch (SQLException broken) {
            return;
        }
    }

    private SQLException classified(SQLException error) throws Passing {
        if (isTransient(error) || (state(error) == null && lost())) {
            throw new Passing(error);
        }
        return error;
    }

    static boolean isTransient(Throwable error) {
        if (!(error instanceof SQLException sql)) {
            return false;
        }
        return sql.getSQLState() != null ? TRANSIENT.matcher(sql.getSQLState()).lookingAt()
                : error instanceof SQLTransientException || error instanceof SQLRecoverableException;
    }

    /** The SQLSTATE of an error, which a layer above JDBC may have wrapped, or null. */
    static String state(Object error) {
        Throwable cause = error instanceof Throwable thrown ? thrown : null;
        while (cause != null && !(cause instanceof SQLException sql && sql.getSQLState() != null)) {
            cause = cause.getCause();
        }
        return cause == null ? null : ((SQLException) cause).getSQLState();
    }

    static List<Object[]> rows(Connection connection, String sql, Object... arguments) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            for (int i = 0; i < arguments.length; i++) {
                if (arguments[i] instanceof Array array) {
                    statement.setArray(i + 1, array);
                } else {
                    statement.setString(i + 1, arguments[i] == null ? null : arguments[i].toString());
                }
            }
            List<Object[]> rows = new ArrayList<>();
            boolean hasRows = statement.execute();
            try (ResultSet result = hasRows ? statement.getResultSet() : null) {
                Object[] row;
                while (hasRows && result.next()) {
                    rows.add(row = new Object[result.getMetaData().getColumnCount()]);
                    for (int i = 0; i < row.length; i++) {
                        row[i] = result.getObject(i + 1);
                    }
                }
            }
            return rows;
        }
    }
}
