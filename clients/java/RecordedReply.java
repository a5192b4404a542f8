import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

import static java.nio.charset.StandardCharsets.UTF_8;

/** Replies as JSON. The clients for other languages record the same, so each can replay what another has recorded. */
final class RecordedReply {
    /** The headers that a replay repeats. Never Set-Cookie: another client may send the key again. */
    private static final Set<String> HEADERS = Set.of("content-type", "content-encoding", "content-language",
            "content-disposition", "location", "etag", "last-modified", "link", "retry-after");

    private RecordedReply() {}

    /** A header value has a character for each byte (ISO 8859-1). jsonb has no character 0: such a body is base64. */
    static String toJson(IdempotencyKey.Reply reply) {
        List<String> kept = new ArrayList<>();
        reply.headers().forEach((name, values) -> {
            String lower = name.toLowerCase(Locale.ROOT);
            if (HEADERS.contains(lower)) {
                values.forEach(value -> kept.add("[" + Json.quote(lower) + ", " + Json.quote(value) + "]"));
            }
        });
        String body;
        try {
            String text = UTF_8.newDecoder().decode(ByteBuffer.wrap(reply.body())).toString();
            body = text.indexOf(0) < 0 ? "\"body\": " + Json.quote(text) : null;
        } catch (CharacterCodingException binary) {
            body = null;
        }
        body = body != null ? body : "\"base64\": \"" + Base64.getEncoder().encodeToString(reply.body()) + "\"";
        return "{\"status\": %d, \"headers\": [%s], %s}".formatted(reply.status(), String.join(", ", kept), body);
    }

    /** The reply that a request was recorded with. */
    static IdempotencyKey.Reply replay(Idempotence.Answer answer) {
        if (answer.status().equals("cancelled")) {
            return Problem.CANCELLED.reply();
        }
        Object recorded = answer.response() == null ? null : Json.parse(answer.response());
        if (!(recorded instanceof Map<?, ?> members && members.get("status") instanceof Double status
                && members.get("headers") instanceof List<?> pairs)) {
            return Problem.INTERRUPTED.reply();
        }
        Map<String, List<String>> headers = new HashMap<>(Map.of("Idempotent-Replayed", List.of("true")));
        for (Object each : pairs) {
            List<?> pair = (List<?>) each;
            headers.computeIfAbsent((String) pair.get(0), name -> new ArrayList<>()).add((String) pair.get(1));
        }
        byte[] body = members.get("base64") instanceof String base64 ? Base64.getDecoder().decode(base64)
                : members.get("body") instanceof String text ? text.getBytes(UTF_8) : new byte[0];
        return new IdempotencyKey.Reply(status.intValue(), headers, body);
    }
}
