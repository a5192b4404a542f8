import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpHandler;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Callable;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.Function;

/** Reads requests from the JDK's HTTP server and sends replies. */
final class JdkServer {
    private static final System.Logger LOG = System.getLogger("idempotence");

    private final IdempotencyKey guard;
    private final Function<HttpExchange, String> caller;

    JdkServer(IdempotencyKey guard, Function<HttpExchange, String> caller) {
        this.guard = guard;
        this.caller = caller;
    }

    HttpHandler protect(IdempotencyKey.Handler handler) {
        return exchange -> {
            var sent = new AtomicBoolean();
            Runnable onTimeout = () -> {
                // The handler may never return.
                if (sent.compareAndSet(false, true)) {
                    send(exchange, Problem.UNAVAILABLE.reply());
                }
            };
            var reply = replied(() -> received(exchange, handler, onTimeout));
            if (sent.compareAndSet(false, true)) {
                send(exchange, reply);
            }
        };
    }

    HttpHandler answer() {
        return exchange -> send(exchange, replied(
                () -> guard.lookUp(exchange.getRequestHeaders().get("Idempotency-Key"), id(exchange))));
    }

    private static IdempotencyKey.Reply replied(Callable<IdempotencyKey.Reply> call) {
        try {
            return call.call();
        } catch (Exception | Error error) {
            LOG.log(System.Logger.Level.ERROR, "not answered", error);
            return new IdempotencyKey.Reply(500, Map.of(), null);
        }
    }

    private String id(HttpExchange exchange) {
        return caller == null ? null : Objects.requireNonNullElse(caller.apply(exchange), "");
    }

    private IdempotencyKey.Reply received(HttpExchange exchange, IdempotencyKey.Handler handler, Runnable onTimeout)
            throws Exception {
        String method = exchange.getRequestMethod();
        List<String> keys = exchange.getRequestHeaders().get("Idempotency-Key");
        boolean limited = guard.isProtected(method) && (keys != null || guard.required());
        // One more byte than allowed shows that the body is too large.
        int most = limited && guard.maxBody() < Integer.MAX_VALUE ? guard.maxBody() + 1 : Integer.MAX_VALUE;
        byte[] body;
        try {
            body = exchange.getRequestBody().readNBytes(most);
        } catch (IOException brokenOff) {
            return Problem.BODY_INCOMPLETE.reply();
        }
        // The server reports the end of a connection as the end of the body.
        String announced = exchange.getRequestHeaders().getFirst("Content-Length");
        if (announced != null && body.length < Math.min(Long.parseLong(announced.trim()), most)) {
            return Problem.BODY_INCOMPLETE.reply();
        }
        String id = limited ? id(exchange) : null;
        String[] target = exchange.getRequestURI().toString().split("\\?", 2);
        // A proxy sends the absolute form, http://host/path.
        String path = target[0].replaceFirst("^[a-zA-Z][a-zA-Z0-9+.-]*://[^/]*", "");
        String query = target.length < 2 ? null : target[1];
        return guard.serve(new IdempotencyKey.Request(method, path, query, keys, id, body), handler, onTimeout);
    }

    private static void send(HttpExchange exchange, IdempotencyKey.Reply reply) {
        // A handler may leave its thread interrupted. A channel that such a thread writes to is closed. The thread does
        // not get its interrupt back, because it may be the one in which the server accepts all connections.
        Thread.interrupted();
        try {
            var headers = exchange.getResponseHeaders();
            // A filter may have named other headers that the answer varies with.
            List<String> varies = headers.getOrDefault("Vary", List.of());
            headers.putAll(reply.sendable());
            for (String each : varies) {
                if (!headers.get("Vary").contains(each)) {
                    headers.add("Vary", each);
                }
            }
            boolean hasBody = reply.body().length > 0 && !exchange.getRequestMethod().equalsIgnoreCase("HEAD");
            exchange.sendResponseHeaders(reply.status(), hasBody ? reply.body().length : -1);
            if (hasBody) {
                exchange.getResponseBody().write(reply.body());
            }
        } catch (IOException gone) {
            LOG.log(System.Logger.Level.DEBUG, "the client is gone", gone);
        } finally {
            exchange.close();
        }
    }
}
