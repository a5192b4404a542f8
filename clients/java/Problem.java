import java.util.HashMap;
import java.util.List;
import java.util.Map;

import static java.nio.charset.StandardCharsets.UTF_8;

/** The answers of the adapter itself (RFC 9457). docs/http.md explains the types. */
enum Problem {
    KEY_MISSING("key-missing", 400, "The header Idempotency-Key is missing",
            "Send the header Idempotency-Key with a new key for each request, and the same key with each retry."),
    KEY_MALFORMED("key-malformed", 400, "The header Idempotency-Key is malformed",
            "The header Idempotency-Key must be one string of 1 to 255 characters."),
    KEY_REUSED("key-reused", 422, "The key was used for another request",
            "A request with this key and another method, path, query or body was received before. Use a new key."),
    IN_PROGRESS("in-progress", 409, "The request is still in progress",
            "The first request with this key is still being executed. Send it again later, unchanged."),
    INTERRUPTED("interrupted", 409, "The request was interrupted",
            "The first request with this key stopped in the middle. An operator must check what has happened."),
    NOT_HTTP("interrupted", 409, "The recorded response is not an HTTP answer",
            "The request with this key was recorded by a program that is not an HTTP adapter."),
    CANCELLED("cancelled", 410, "The request was cancelled",
            "The request with this key was cancelled and never takes effect."),
    UNKNOWN("unknown", 404, "The key is not known", "No request with this key has been recorded or is in progress."),
    BODY_TOO_LARGE("body-too-large", 413, "The body is too large", "The body exceeds the limit of %s bytes."),
    BODY_INCOMPLETE("body-incomplete", 400, "The body is incomplete",
            "The body ended before its announced length. Nothing was executed. Send the request again."),
    RESPONSE_TOO_LARGE("response-too-large", 500, "The response is too large to be recorded",
            "Nothing was kept. %s The limit is the setting idempotence.max_response."),
    HANDLER_TIMEOUT("unavailable", 503, "The handler exceeded its time limit",
            "Nothing was kept. Send the request again, unchanged."),
    UNAVAILABLE("unavailable", 503, "The result is not known",
            "The connection to the database was lost or could not be opened. Send the request again, unchanged.");

    /** The page about the problem types. */
    private static final String DOCS = "https://pgxn.org/dist/idempotence/docs/http.html";

    private final String slug;
    private final int status;
    private final String title;
    private final String detail;

    Problem(String slug, int status, String title, String detail) {
        this.slug = slug;
        this.status = status;
        this.title = title;
        this.detail = detail;
    }

    IdempotencyKey.Reply reply(Object... found) {
        String json = "{\"type\": %s, \"title\": %s, \"status\": %d, \"detail\": %s}".formatted(
                Json.quote(DOCS + "#" + slug), Json.quote(title), status, Json.quote(detail.formatted(found)));
        Map<String, List<String>> headers = new HashMap<>(Map.of("Content-Type", List.of("application/problem+json"),
                "Link", List.of("<" + DOCS + ">; rel=\"describedby\"")));
        if (status == 409 || status == 503) {
            headers.put("Retry-After", List.of("1"));
        }
        return new IdempotencyKey.Reply(status, headers, json.getBytes(UTF_8));
    }
}
