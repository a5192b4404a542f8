import java.net.URLEncoder;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.HexFormat;
import java.util.List;
import java.util.Objects;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import static java.nio.charset.StandardCharsets.UTF_8;

/** The key in the header Idempotency-Key, and the name that it gives the request in the session. */
final class RequestName {
    // A string of RFC 8941 with parameters behind it, or the key without quotation marks.
    private static final Pattern QUOTED = Pattern.compile(
            " *\"((?:[ !#-\\[\\]-~]|\\\\[\"\\\\]){1,510})\"(?: *; *[a-z*][a-z0-9_.*-]*(?:=[!#-+\\--:<-~]+)?)* *");
    private static final Pattern BARE = Pattern.compile(" *([!#-+\\--:<-~]+) *");

    private RequestName() {}

    /** The key that was sent, or null if it is not one valid key. */
    static String key(List<String> sent, boolean strict) {
        Matcher quoted = QUOTED.matcher(sent.get(0));
        Matcher bare = BARE.matcher(sent.get(0));
        String key = quoted.matches() ? quoted.group(1).replaceAll("\\\\(.)", "$1")
                : !strict && bare.matches() ? bare.group(1) : null;
        return sent.size() > 1 || key == null || key.length() > 255 ? null : key;
    }

    /** The caller, a colon, the key. No caller can produce the name of another caller's request. */
    static String of(String caller, String key) {
        if (caller != null && caller.isEmpty()) {
            throw new IllegalStateException("the caller's id is empty: authenticate in front of the adapter; the"
                    + " function must return the principal's id");
        }
        String who = Objects.requireNonNullElse(caller, "");
        String escaped = URLEncoder.encode(who, UTF_8).replace("+", "%20").replace("*", "%2A").replace("%40", "@");
        String prefix = escaped.length() > 100 ? "~" + digest(who.getBytes(UTF_8)) : escaped;
        String name = prefix + ":" + key;
        String shorter = prefix + "~:" + digest(key.getBytes(UTF_8)) + ":" + key;
        return name.length() <= 255 ? name : shorter.substring(0, 255);
    }

    static String digest(byte[] bytes) {
        try {
            return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
        } catch (NoSuchAlgorithmException impossible) {
            throw new AssertionError(impossible);
        }
    }
}
