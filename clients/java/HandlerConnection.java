import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.sql.Array;
import java.sql.Blob;
import java.sql.CallableStatement;
import java.sql.Clob;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;

/**
 * The connection that the work receives. It passes calls to the transaction's connection until the work has returned,
 * and refuses them afterwards. Statements, result sets and everything else that the connection has created do the
 * same, so no thread of the work can use the connection when it belongs to the next request.
 */
final class HandlerConnection {
    private static final String ENDED = "the transaction of this request has ended: work that continues after the"
            + " handler has returned needs a connection of its own";
    static final String MISUSE = "the handler must not commit or roll back: the adapter commits after the answer"
            + " is recorded; use a savepoint for a part that may be rolled back";
    /** What can reach the connection. The most specific type comes first. */
    private static final List<Class<?>> GUARDED = List.of(Connection.class, CallableStatement.class,
            PreparedStatement.class, Statement.class, ResultSet.class, DatabaseMetaData.class, Array.class, Blob.class,
            Clob.class);

    /** Every call holds the read lock. The end of the work takes the write lock, and so waits for running calls. */
    private final ReadWriteLock lock = new ReentrantReadWriteLock();
    private final Set<Throwable> transientErrors =
            Collections.synchronizedSet(Collections.newSetFromMap(new IdentityHashMap<>()));
    private final Connection real;
    private final Connection proxy;
    private volatile boolean ended;
    private volatile boolean closed;
    private volatile boolean shared;
    private volatile SQLException misuse;

    HandlerConnection(Connection real) {
        this.real = real;
        this.proxy = (Connection) guarded(real);
    }

    Connection proxy() {
        return proxy;
    }

    /** Takes the connection away from the work. Whether that was possible in time. */
    boolean end(Duration wait) {
        try {
            if (!lock.writeLock().tryLock(wait.toMillis(), TimeUnit.MILLISECONDS)) {
                ended = true;
                return false;
            }
        } catch (InterruptedException interrupted) {
            ended = true;
            Thread.currentThread().interrupt();
            return false;
        }
        ended = true;
        lock.writeLock().unlock();
        return true;
    }

    /** Refuses later calls at once, without waiting for running ones. */
    void refuse() {
        ended = true;
    }

    /** Fails if the work has tried to end the transaction. */
    void check() throws SQLException {
        if (misuse != null) {
            throw misuse;
        }
    }

    /** Whether the work has seen the driver's connection, which cannot refuse later calls. */
    boolean shared() {
        return shared;
    }

    /** Whether this error, or one of its causes, was raised by this connection and may not be met by a new attempt. */
    boolean raisedTransient(Throwable error) {
        for (Throwable each = error; each != null; each = each.getCause()) {
            if (transientErrors.contains(each)) {
                return true;
            }
        }
        return false;
    }

    private Object guarded(Object target) {
        for (Class<?> type : GUARDED) {
            if (type.isInstance(target)) {
                InvocationHandler handler = new Guard(target);
                return Proxy.newProxyInstance(HandlerConnection.class.getClassLoader(), new Class<?>[] {type}, handler);
            }
        }
        return target;
    }

    private final class Guard implements InvocationHandler {
        final Object target;

        Guard(Object target) {
            this.target = target;
        }

        @Override
        public Object invoke(Object self, Method method, Object[] arguments) throws Throwable {
            if (method.getDeclaringClass() == Object.class) {
                return switch (method.getName()) {
                    case "equals" -> self == arguments[0];
                    case "hashCode" -> System.identityHashCode(self);
                    default -> target.toString();
                };
            }
            lock.readLock().lock();
            try {
                if (ended || closed) {
                    return afterTheEnd(method);
                }
                return target == real ? onConnection(method, arguments) : onOther(self, method, arguments);
            } finally {
                lock.readLock().unlock();
            }
        }

        private Object afterTheEnd(Method method) throws SQLException {
            return switch (method.getName()) {
                case "close" -> null;
                case "isClosed" -> true;
                case "isValid" -> false;
                default -> throw new SQLException(ended ? ENDED : "the handler has closed its connection", "08003");
            };
        }

        private Object onConnection(Method method, Object[] arguments) throws Throwable {
            switch (method.getName()) {
                case "close":
                    closed = true; // the adapter still needs the real one
                    return null;
                case "commit":
                case "abort":
                    throw misused();
                case "rollback":
                    if (arguments == null) {
                        throw misused();
                    }
                    break;
                case "setAutoCommit":
                    if ((boolean) arguments[0]) {
                        throw misused();
                    }
                    return null;
                default:
            }
            return onOther(proxy, method, arguments);
        }

        private SQLException misused() {
            misuse = new SQLException(MISUSE, "25000");
            return misuse;
        }

        private Object onOther(Object self, Method method, Object[] arguments) throws Throwable {
            if (method.getName().equals("unwrap")) {
                if (((Class<?>) arguments[0]).isInstance(self)) {
                    return self;
                }
                shared = true;
                return called(method, arguments);
            }
            if (method.getName().equals("getConnection")) {
                return proxy;
            }
            return guarded(called(method, arguments));
        }

        private Object called(Method method, Object[] arguments) throws Throwable {
            Object[] plain = arguments == null ? null : arguments.clone();
            for (int i = 0; plain != null && i < plain.length; i++) {
                if (plain[i] != null && Proxy.isProxyClass(plain[i].getClass())
                        && Proxy.getInvocationHandler(plain[i]) instanceof Guard guard) {
                    plain[i] = guard.target;
                }
            }
            try {
                return method.invoke(target, plain);
            } catch (InvocationTargetException failure) {
                note(failure.getCause());
                throw failure.getCause();
            }
        }

        /** Remembers an error of this connection that a new attempt may not meet, and what it consists of. */
        private void note(Throwable error) {
            for (Throwable each = error; each != null; each = each.getCause()) {
                SQLException next = each instanceof SQLException sql ? sql : null;
                for (; next != null; next = next.getNextException()) {
                    if (Transaction.isTransient(next)) {
                        transientErrors.add(next);
                    }
                }
            }
        }
    }
}
