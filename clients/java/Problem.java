import java.util.HashMap;
import java.util.List;
import java.util.Map;

import static java.nio.charset.StandardCharsets.UTF_8;

/** The adapter's own answers (RFC 9457). docs/http.md explains the types. The other clients use the same words. */
enum Problem {
    KEY_MISSING("key-missing", 400, "This request needs an idempotency key",
            "Send the header Idempotency-Key with a new key for each new request, and the same key with each "
                    + "retry."),
    KEY_MALFORMED("key-malformed", 400, "The idempotency key is malformed",
            "The header Idempotency-Key must be sent once and contain one string of 1 to 255 visible ASCII "
                    + "characters."),
    KEY_REUSED("key-reused", 422, "The idempotency key was used for another request",
            "The method, the path, the query or the body differs from those of the first request with this key. A "
                    + "new request needs a new key."),
    IN_PROGRESS("in-progress", 409, "The request is in progress",
            "The first request with this key has not been answered yet. Send the request again later, unchanged."),
    INTERRUPTED("interrupted", 409, "The request was interrupted",
            "The first request with this key stopped in the middle. It has to be taken over before it can be "
                    + "answered."),
    CANCELLED("cancelled", 410, "The request was cancelled",
            "The request with this key was cancelled before it was executed. It never takes effect."),
    UNKNOWN("unknown", 404, "The request is unknown",
            "No request with this key is known."),
    BODY_TOO_LARGE("body-too-large", 413, "The body is too large",
            "The body is larger than %s bytes, the limit of this route."),
    BODY_INCOMPLETE("body-incomplete", 400, "The body is incomplete",
            "Fewer bytes arrived than Content-Length announces. Nothing was executed. Send the request again, "
                    + "unchanged."),
    RESPONSE_TOO_LARGE("response-too-large", 500, "The response is too large to be recorded",
            "%s The limit is the setting idempotence.max_response of the database. The effects of the request "
                    + "were rolled back."),
    UNAVAILABLE("unavailable", 503, "The service is unavailable",
            "It is not known whether the request took effect. Send the request again, unchanged.");

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
