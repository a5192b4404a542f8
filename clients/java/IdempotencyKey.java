// The header Idempotency-Key for handlers over JDBC, as the IETF's draft and Stripe have it. It goes with
// Idempotence.java into the same package, and needs no framework: `serve` is for any server, `http` for the JDK's.
//
//     var guard = new IdempotencyKey(new Idempotence(pool, "payments"));
//     server.createContext("/transfers", guard.http(null, (connection, request) -> {
//         …
//         return new IdempotencyKey.Reply(201, …);
//     }));
//
// The handler works on the transaction's connection, and its reply leaves after COMMIT has returned. What is recorded
// is what the clients for other languages record, so they can replay it. There is no lease, no wait for who is at
// work, and no GET on the key.

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpHandler;
import java.net.URLEncoder;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.sql.Connection;
import java.sql.SQLException;
import java.time.Duration;
import java.util.*;
import java.util.function.Function;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import static java.nio.charset.StandardCharsets.UTF_8;

/**
 * Protects handlers of POST and PATCH; the others get a transaction and no more.
 *
 * @param required a key must be there
 * @param strict only the quoted string of the IETF's draft is a key
 * @param maxBody the most bytes that are protected; larger bodies are refused
 */
public record IdempotencyKey(Idempotence requests, boolean required, boolean strict, int maxBody) {
    private static final Set<String> METHODS = Set.of("POST", "PATCH");
    private static final String DOCS =
            "https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header";
    // Never Set-Cookie: who sends a key again may be somebody else.
    private static final Set<String> HEADERS = Set.of("content-type", "content-language", "content-disposition",
            "location", "etag", "last-modified", "link");
    // A string of RFC 8941, and parameters behind it; or, where that is allowed, the key as it is.
    private static final Pattern QUOTED = Pattern.compile(
            " *\"((?:[ !#-\\[\\]-~]|\\\\[\"\\\\]){1,510})\"(?: *; *[a-z*][a-z0-9_.*-]*(?:=[!#-+\\--:<-~]+)?)* *");
    private static final Pattern BARE = Pattern.compile(" *([!#-+\\--:<-~]+) *");

    public IdempotencyKey(Idempotence requests) {
        this(requests, true, false, 1 << 20);
    }

    /** What a protected handler is asked. path is decoded, query is not; keys are the values of the header. */
    public record Request(String method, String path, String query, List<String> keys, String caller, byte[] body) {}

    public record Reply(int status, Map<String, List<String>> headers, byte[] body) {
        /** Whether it is kept. Else a retry executes the request. */
        boolean isFinal() {
            return status >= 200 && status < 500 && !Set.of(408, 409, 425, 429).contains(status);
        }
    }

    /** A handler works on the transaction's connection, and never answers by itself. */
    public interface Handler {
        Reply handle(Connection connection, Request request) throws Exception;
    }

    /** A reply that is not kept takes the effects back. */
    private static final class NotFinal extends Exception {
        final transient Reply reply;

        NotFinal(Reply reply) {
            this.reply = reply;
        }
    }

    /** For any server: the reply, after COMMIT has returned. What is thrown is the handler's own, or a mistake: 500. */
    public Reply serve(Request request, Handler handler) throws Exception {
        boolean none = request.keys == null || request.keys.isEmpty();
        try {
            if (!METHODS.contains(request.method) || (none && !required)) {
                return requests.transaction(connection -> handled(connection, request, handler));
            }
        } catch (NotFinal answered) {
            return answered.reply;
        }
        String key = none ? null : key(request.keys);
        if (key == null) {
            return none ? problem("key-missing", 400, "this request needs a header Idempotency-Key") : problem(
                    "key-malformed", 400, "the header Idempotency-Key is not one string of 1 to 255 characters");
        }
        return request.body.length > maxBody ? problem("body-too-large", 413, "the body is too large to be protected")
                : once(request, name(request.caller, key), handler);
    }

    /** A duplicate waits for nobody: it would hold a connection. */
    private Reply once(Request request, String name, Handler handler) throws Exception {
        String payload = "{\"method\": %s, \"path\": %s, \"query\": %s, \"body\": \"%s\"}".formatted(
                quote(request.method), quote(request.path), quote(Objects.requireNonNullElse(request.query, "")),
                digest(request.body));
        try {
            return requests.retried(Duration.ZERO, connection -> {
                Reply[] reply = new Reply[1];
                Idempotence.Answer answer = requests.executed(connection, name, payload, Duration.ZERO, same -> {
                    reply[0] = handled(same, request, handler);
                    if (reply[0].status >= 400) {
                        throw new Idempotence.Final(recorded(reply[0]));
                    }
                    return recorded(reply[0]);
                });
                return answer.replayed() ? replayed(connection, answer) : reply[0];
            });
        } catch (NotFinal answered) {
            return answered.reply;
        } catch (Idempotence.InProgress busy) {
            return problem("in-progress", 409, "the first request with this key is still at work: send it again later");
        } catch (Idempotence.Interrupted stopped) {
            return problem("interrupted", 409, "the first request with this key stopped in the middle: look why");
        } catch (Exception error) {
            if ("ID001".equals(Idempotence.state(error))) {
                return problem("key-reused", 422, "the key was used for another request: a new one needs a new key");
            } else if (Idempotence.mayRetry(error)) {
                return problem("unavailable", 503, "nobody knows what was done: send it again, unchanged");
            }
            throw error;
        }
    }

    /** For the server of the JDK. caller tells who asks, whose keys are then its own; null: all are one. */
    public HttpHandler http(Function<HttpExchange, String> caller, Handler handler) {
        return exchange -> {
            try (exchange) {
                Reply reply;
                try {
                    reply = asked(exchange, caller, handler);
                } catch (Exception error) {
                    System.getLogger("idempotence").log(System.Logger.Level.ERROR, "not answered", error);
                    reply = new Reply(500, Map.of(), new byte[0]);
                }
                exchange.getResponseHeaders().putAll(reply.headers);
                exchange.sendResponseHeaders(reply.status, reply.body.length == 0 ? -1 : reply.body.length);
                exchange.getResponseBody().write(reply.body);
            }
        };
    }

    private Reply asked(HttpExchange exchange, Function<HttpExchange, String> caller, Handler handler)
            throws Exception {
        var headers = exchange.getRequestHeaders();
        boolean keyed = headers.containsKey("Idempotency-Key");
        boolean bounded = METHODS.contains(exchange.getRequestMethod()) && (keyed || required);
        if (bounded && keyed && headers.containsKey("Transfer-Encoding")) {
            return problem("length-required", 411, "a body that is to be protected needs a Content-Length");
        }
        // One byte more than is allowed tells that it is too much.
        byte[] body = exchange.getRequestBody().readNBytes(bounded ? maxBody + 1 : Integer.MAX_VALUE);
        var uri = exchange.getRequestURI();
        return serve(new Request(exchange.getRequestMethod(), uri.getPath(), uri.getRawQuery(),
                headers.get("Idempotency-Key"), caller == null ? "" : caller.apply(exchange), body), handler);
    }

    private static Reply handled(Connection connection, Request request, Handler handler) throws Exception {
        Reply reply = handler.handle(connection, request);
        if (!reply.isFinal()) {
            throw new NotFinal(reply);
        }
        return reply;
    }

    /** The key that was sent. null: it is none. */
    private String key(List<String> sent) {
        Matcher quoted = QUOTED.matcher(sent.get(0));
        Matcher bare = BARE.matcher(sent.get(0));
        String key = quoted.matches() ? quoted.group(1).replaceAll("\\\\(.)", "$1")
                : !strict && bare.matches() ? bare.group(1) : null;
        return sent.size() > 1 || key == null || key.length() > 255 ? null : key;
    }

    /** The caller, a colon, the key. No caller can make it the name of another's request. */
    private static String name(String caller, String key) {
        String who = Objects.requireNonNullElse(caller, "");
        String escaped = URLEncoder.encode(who, UTF_8).replace("+", "%20").replace("*", "%2A").replace("%40", "@");
        String prefix = escaped.length() > 100 ? "~" + digest(who.getBytes(UTF_8)) : escaped;
        String name = prefix + ":" + key;
        String shorter = prefix + "~:" + digest(key.getBytes(UTF_8)) + ":" + key;
        return name.length() <= 255 ? name : shorter.substring(0, 255);
    }

    private static Reply problem(String slug, int status, String title) {
        String json = "{\"type\": \"%s#%s\", \"title\": \"%s\", \"status\": %d}".formatted(DOCS, slug, title, status);
        Map<String, List<String>> headers = new HashMap<>(Map.of("Content-Type", List.of("application/problem+json"),
                "Link", List.of("<" + DOCS + ">; rel=\"describedby\"")));
        if (status == 409 || status == 503) {
            headers.put("Retry-After", List.of("1"));
        }
        return new Reply(status, headers, json.getBytes(UTF_8));
    }

    /** As jsonb, which has no character 0. The clients for other languages record the same. */
    private static String recorded(Reply reply) {
        List<String> kept = new ArrayList<>();
        reply.headers.forEach((name, values) -> {
            String lower = name.toLowerCase(Locale.ROOT);
            if (HEADERS.contains(lower)) {
                values.forEach(value -> kept.add("[" + quote(lower) + ", " + quote(value) + "]"));
            }
        });
        String body;
        try {
            String text = UTF_8.newDecoder().decode(ByteBuffer.wrap(reply.body)).toString();
            body = text.indexOf(0) < 0 ? "\"body\": " + quote(text) : null;
        } catch (CharacterCodingException binary) {
            body = null;
        }
        body = body != null ? body : "\"base64\": \"" + Base64.getEncoder().encodeToString(reply.body) + "\"";
        return "{\"status\": %d, \"headers\": [%s], %s}".formatted(reply.status, String.join(", ", kept), body);
    }

    /** The database takes the JSON apart, on the connection that has the answer. */
    private static Reply replayed(Connection connection, Idempotence.Answer answer) throws SQLException {
        List<Object[]> rows = Idempotence.query(connection, """
                SELECT r->>'status', r->>'body', r->>'base64', h->>0, h->>1
                FROM (SELECT CAST(? AS jsonb)) AS t(r) LEFT JOIN jsonb_array_elements(r->'headers') AS h ON true""",
                answer.response());
        Object[] first = rows.get(0);
        if (answer.status().equals("cancelled")) {
            return problem("cancelled", 410, "the request with this key was cancelled, and never takes effect");
        } else if (first[0] == null) {
            return problem("interrupted", 409, "the request with this key was recorded, and not as an answer of HTTP");
        }
        Map<String, List<String>> headers = new HashMap<>(Map.of("Idempotent-Replayed", List.of("true")));
        for (Object[] row : rows) {
            if (row[3] != null) {
                headers.computeIfAbsent((String) row[3], name -> new ArrayList<>()).add((String) row[4]);
            }
        }
        byte[] body = first[2] != null ? Base64.getDecoder().decode((String) first[2])
                : Objects.requireNonNullElse((String) first[1], "").getBytes(UTF_8);
        return new Reply(Integer.parseInt((String) first[0]), headers, body);
    }

    private static String digest(byte[] bytes) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
        } catch (NoSuchAlgorithmException impossible) {
            throw new AssertionError(impossible);
        }
    }

    static String quote(String text) {
        StringBuilder json = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            boolean escaped = each == '"' || each == '\\';
            json.append(escaped ? "\\" + each : each < ' ' ? "\\u%04x".formatted((int) each) : each);
        }
        return json.append('"').toString();
    }
}
