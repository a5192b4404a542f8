// The header Idempotency-Key for handlers over JDBC, as the IETF's draft and Stripe describe it. Copy it together
// with the other files of this folder. It needs no framework: `serve` is for any server, `http` for the server of the
// JDK.
//
//     var guard = new IdempotencyKey(new Idempotence(pool, "payments"));
//     server.createContext("/transfers", guard.http(null, (connection, request) -> {
//         …
//         return new IdempotencyKey.Reply(201, …);
//     }));
//
// The handler works on the connection of the transaction, and its reply is sent after COMMIT has returned. The recorded
// answers are those of the clients for other languages. Leases are not available.

import com.sun.net.httpserver.Headers;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpHandler;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.function.Function;
import java.util.regex.Pattern;
import org.postgresql.util.PSQLException;

/**
 * Protects HTTP handlers.
 *
 * @param required a request without a key is refused; otherwise it runs in a transaction and is not protected
 * @param strict only the quoted string of the IETF's draft is accepted as a key
 * @param maxBody the largest body in bytes; larger ones are refused with 413
 * @param methods the protected methods in any case; null: all except GET, HEAD, OPTIONS and TRACE. Requests with other
 *     methods run in a transaction and are not protected
 * @param waits how long a duplicate waits for the lock holder, without occupying a connection. Zero: it is answered
 *     with 409 at once
 * @param handlerTimeout limits the handler. After that the answer is 503 and nothing is kept
 */
public record IdempotencyKey(Idempotence requests, boolean required, boolean strict, int maxBody, Set<String> methods,
        Duration waits, Duration handlerTimeout) {
    private static final Set<String> SAFE_METHODS = Set.of("GET", "HEAD", "OPTIONS", "TRACE");
    private static final System.Logger LOG = System.getLogger("idempotence");

    public IdempotencyKey {
        Objects.requireNonNull(requests, "IdempotencyKey needs requests: new Idempotence(pool, session)");
        if (requests.session() == null || requests.session().isEmpty()) {
            throw new IllegalArgumentException("IdempotencyKey needs a session: new Idempotence(pool, session)");
        }
        if (maxBody <= 0 || handlerTimeout == null || handlerTimeout.isNegative() || handlerTimeout.isZero()) {
            throw new IllegalArgumentException("maxBody and handlerTimeout must be positive");
        }
        if (waits == null || waits.isNegative()) {
            throw new IllegalArgumentException("waits must be zero or positive");
        }
        if (methods != null) {
            methods = Set.copyOf(methods.stream().map(method -> method.toUpperCase(Locale.ROOT)).toList());
        }
    }

    public IdempotencyKey(Idempotence requests, boolean required, boolean strict, int maxBody) {
        this(requests, required, strict, maxBody, null, Duration.ZERO, Duration.ofSeconds(60));
    }

    public IdempotencyKey(Idempotence requests) {
        this(requests, true, false, 1 << 20);
    }

    /**
     * A request to a protected handler.
     *
     * @param path the path as the client has sent it: not decoded, and with every prefix
     * @param query the query as the client has sent it, or null
     * @param keys the values of the header Idempotency-Key
     * @param caller the id of the principal that was authenticated in front. Each caller has its own keys. An empty id
     *     is refused. null: all callers share their keys
     */
    public record Request(String method, String path, String query, List<String> keys, String caller, byte[] body) {}

    /** A whole answer. Content-Length is set from the body. */
    public record Reply(int status, Map<String, List<String>> headers, byte[] body) {
        private static final Set<Integer> NOT_FINAL = Set.of(401, 405, 407, 408, 409, 415, 425, 429);
        private static final Pattern HEADER_NAME = Pattern.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]+");

        public Reply {
            headers = headers == null ? Map.of() : headers;
            body = body == null || status == 204 || status == 304 ? new byte[0] : body;
        }

        /** Whether it is recorded. Otherwise a retry executes the request. */
        boolean isFinal() {
            return status >= 200 && status < 500 && !NOT_FINAL.contains(status);
        }

        /** The headers in the form that can be sent, or an IllegalArgumentException. Called before COMMIT, too. */
        Headers sendable() {
            if (status < 200 || status > 599) {
                throw new IllegalArgumentException("a reply needs a status from 200 to 599, not " + status);
            }
            Headers sendable = new Headers();
            headers.forEach((name, values) -> values.forEach(value -> {
                if (!HEADER_NAME.matcher(name).matches()) {
                    throw new IllegalArgumentException("\"" + name + "\" is not the name of a header");
                } else if (name.equalsIgnoreCase("Trailer")) {
                    throw new IllegalArgumentException("trailers cannot be recorded");
                }
                // The server of the JDK sends the low byte of each character, so U+010A would be a line feed.
                if (value.chars().anyMatch(each -> each == '\r' || each == '\n' || each == 0 || each > 0xFF)) {
                    throw new IllegalArgumentException("the header " + name + " has a line break, a NUL or a character"
                            + " that is not in ISO 8859-1 in its value");
                }
                if (!name.equalsIgnoreCase("Content-Length") && !name.equalsIgnoreCase("Transfer-Encoding")) {
                    sendable.add(name, value);
                }
            }));
            return sendable;
        }
    }

    /** A handler works on the connection of the transaction and returns its answer. */
    public interface Handler {
        Reply handle(Connection connection, Request request) throws Exception;
    }

    /** A reply that is not recorded. The effects are rolled back. */
    private static final class NotFinal extends Exception {
        final transient Reply reply;

        NotFinal(Reply reply) {
            this.reply = reply;
        }
    }

    /** For any server: returns the reply after COMMIT has returned. Throws what the handler has thrown: answer 500. */
    public Reply serve(Request request, Handler handler) throws Exception {
        return serve(request, handler, () -> { });
    }

    Reply serve(Request request, Handler handler, Runnable onTimeout) throws Exception {
        boolean none = request.keys == null || request.keys.isEmpty();
        var execution = new Execution(request, handler, onTimeout);
        if (!isProtected(request.method) || (none && !required)) {
            return execution.unprotected();
        }
        String key = none ? null : RequestName.key(request.keys, strict);
        if (key == null) {
            return (none ? Problem.KEY_MISSING : Problem.KEY_MALFORMED).reply();
        } else if (request.body.length > maxBody) {
            return Problem.BODY_TOO_LARGE.reply(maxBody);
        }
        return execution.once(RequestName.of(request.caller, key));
    }

    /**
     * For a GET on any server: the recorded answer of the request with this key. It executes nothing. While a lock
     * holder is executing the request, it waits up to `waits`.
     *
     * @param keys the values of the header Idempotency-Key
     * @param caller as in {@link Request}
     */
    public Reply lookUp(List<String> keys, String caller) throws Exception {
        boolean none = keys == null || keys.isEmpty();
        String key = none ? null : RequestName.key(keys, strict);
        Reply reply = key != null ? lookUp(RequestName.of(caller, key))
                : (none ? Problem.KEY_MISSING : Problem.KEY_MALFORMED).reply();
        // A cache does not know that the answer depends on the key and changes with time.
        Map<String, List<String>> headers = new HashMap<>(reply.headers);
        headers.put("Cache-Control", List.of("no-store"));
        headers.put("Vary", List.of("Idempotency-Key"));
        return new Reply(reply.status, headers, reply.body);
    }

    private Reply lookUp(String name) throws Exception {
        try {
            Idempotence.Answer found = requests.retried(waits, () -> {
                Idempotence.Answer now = requests.lookedUp(name, Duration.ZERO);
                if (now.status().equals("in_progress")) {
                    throw new Idempotence.InProgress(name, null);
                }
                return now;
            });
            return switch (found.status()) {
                case "succeeded", "failed", "cancelled" -> RecordedReply.replay(found);
                case "suspended" -> Problem.INTERRUPTED.reply();
                case "not_here" -> Problem.UNAVAILABLE.reply();
                default -> Problem.UNKNOWN.reply();
            };
        } catch (Idempotence.InProgress busy) {
            return Problem.IN_PROGRESS.reply();
        } catch (Transaction.Passing lost) {
            return Problem.UNAVAILABLE.reply();
        }
    }

    boolean isProtected(String method) {
        String upper = method.toUpperCase(Locale.ROOT);
        return methods == null ? !SAFE_METHODS.contains(upper) : methods.contains(upper);
    }

    /** One execution or replay. */
    private final class Execution {
        final Request request;
        final Handler handler;
        final Runnable onTimeout;
        Reply reply;
        boolean exceeded;

        Execution(Request request, Handler handler, Runnable onTimeout) {
            this.request = request;
            this.handler = handler;
            this.onTimeout = onTimeout;
        }

        Reply unprotected() throws Exception {
            try {
                requests.unprotected(this::work);
                return reply;
            } catch (Exception error) {
                return answer(error, false);
            }
        }

        /** A duplicate does not wait in the database, because it would occupy a connection meanwhile. */
        Reply once(String name) throws Exception {
            String payload = "{\"method\": %s, \"path\": %s, \"query\": %s, \"body\": \"%s\"}".formatted(
                    Json.quote(request.method.toUpperCase(Locale.ROOT)), Json.quote(request.path),
                    Json.quote(Objects.requireNonNullElse(request.query, "")), RequestName.digest(request.body));
            try {
                Idempotence.Answer answer = requests.retried(waits,
                        () -> requests.attempt(name, payload, Duration.ZERO, this::work));
                return answer.replayed() ? RecordedReply.replay(answer) : reply;
            } catch (Exception error) {
                return answer(error, true);
            }
        }

        /** Calls the handler within its time limit. Returns what is recorded. */
        private String work(Transaction transaction, Connection connection) throws Exception {
            var limit = new TimeLimit(handlerTimeout, () -> {
                LOG.log(System.Logger.Level.ERROR, "the handler of {0} {1} has exceeded its time limit of {2}: its"
                        + " connection is closed", request.method, request.path, handlerTimeout);
                transaction.kill();
                onTimeout.run();
            });
            try (limit) {
                reply = handler.handle(connection, request);
            } catch (Idempotence.Final refused) {
                throw new IllegalStateException("a handler must return a refusal as a reply, not throw Final", refused);
            } finally {
                exceeded = limit.exceeded();
            }
            if (reply == null) {
                throw new IllegalStateException("the handler has returned no reply");
            }
            reply.sendable();
            if (!reply.isFinal()) {
                throw new NotFinal(reply);
            } else if (reply.status >= 400) {
                throw new Idempotence.Final(RecordedReply.toJson(reply));
            }
            return RecordedReply.toJson(reply);
        }

        /** The answer to an error. Throws the errors of the handler and mistakes. */
        private Reply answer(Exception error, boolean keyed) throws Exception {
            if (exceeded) {
                return Problem.UNAVAILABLE.reply();
            } else if (error instanceof Transaction.WorkFailed failed) {
                if (failed.getCause() instanceof NotFinal answered) {
                    return answered.reply;
                }
                throw failed.getCause() instanceof Exception cause ? cause : failed;
            } else if (error instanceof Transaction.Passing && (keyed || reply == null)) {
                return Problem.UNAVAILABLE.reply();
            } else if (error instanceof Idempotence.InProgress) {
                return Problem.IN_PROGRESS.reply();
            } else if (error instanceof Idempotence.Interrupted) {
                return Problem.INTERRUPTED.reply();
            } else if ("ID001".equals(Transaction.state(error))) {
                return Problem.KEY_REUSED.reply();
            } else if ("ID009".equals(Transaction.state(error)) && reply != null) {
                return Problem.RESPONSE_TOO_LARGE.reply(detail(error));
            }
            if (endedByHandler(error)) {
                throw new SQLException(HandlerConnection.MISUSE, Transaction.state(error), error);
            }
            throw error instanceof Transaction.Passing && error.getCause() instanceof Exception cause ? cause : error;
        }
    }

    /**
     * For the server of the JDK. caller returns the id of the principal that a layer in front has authenticated;
     * null: all callers share their keys.
     */
    public HttpHandler http(Function<HttpExchange, String> caller, Handler handler) {
        Objects.requireNonNull(handler, "http needs a handler");
        return new JdkServer(this, caller).protect(handler);
    }

    /** For a GET on the server of the JDK. caller must be that of the protected route. */
    public HttpHandler answer(Function<HttpExchange, String> caller) {
        return new JdkServer(this, caller).answer();
    }

    /** not_begun and unrecorded: the handler has sent a COMMIT or a ROLLBACK. */
    private static boolean endedByHandler(Throwable error) {
        return Set.of("ID007", "ID008").contains(Objects.requireNonNullElse(Transaction.state(error), ""));
    }

    /** The DETAIL of an error of the database. */
    private static String detail(Throwable error) {
        for (Throwable each = error; each != null; each = each.getCause()) {
            if (each instanceof PSQLException of && of.getServerErrorMessage() != null) {
                return of.getServerErrorMessage().getDetail();
            }
        }
        return error.getMessage();
    }
}
