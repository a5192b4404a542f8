import java.time.Duration;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

/**
 * Limits the time of a handler. The handler runs in the thread of its server, so that what filters keep in
 * ThreadLocals is there. After the limit this thread is interrupted, and the given action closes the connection.
 */
final class TimeLimit implements AutoCloseable {
    private static final ScheduledThreadPoolExecutor TIMER = new ScheduledThreadPoolExecutor(1, TimeLimit::daemon);

    static {
        TIMER.setRemoveOnCancelPolicy(true);
    }

    private final Thread handler = Thread.currentThread();
    private final ScheduledFuture<?> alarm;
    private boolean over;
    private boolean exceeded;

    TimeLimit(Duration limit, Runnable action) {
        // In a thread of its own, because the action waits for the network and other limits must not wait for it.
        alarm = TIMER.schedule(() -> daemon(() -> expire(action)).start(), limit.toMillis(), TimeUnit.MILLISECONDS);
    }

    private static Thread daemon(Runnable task) {
        var thread = new Thread(task, "idempotence-time-limit");
        thread.setDaemon(true);
        return thread;
    }

    private synchronized void expire(Runnable action) {
        if (!over) {
            exceeded = true;
            action.run();
            handler.interrupt();
        }
    }

    synchronized boolean exceeded() {
        return exceeded;
    }

    /** The handler has returned. The interrupt is for nothing else. */
    @Override
    public synchronized void close() {
        over = true;
        alarm.cancel(false);
        if (exceeded) {
            Thread.interrupted();
        }
    }
}
