import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The JSON of recorded answers. The JDK has no library for it. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** The value as Map, List, String, Double, Boolean or null. Reads what jsonb prints, which is well-formed. */
    static Object parse(String text) {
        return new Json(text).value();
    }

    static String quote(String text) {
        StringBuilder json = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            boolean escaped = each == '"' || each == '\\';
            json.append(escaped ? "\\" + each : each < ' ' ? "\\u%04x".formatted((int) each) : each);
        }
        return json.append('"').toString();
    }

    private char next() {
        while (Character.isWhitespace(text.charAt(at))) {
            at++;
        }
        return text.charAt(at);
    }

    private Object value() {
        return switch (next()) {
            case '{' -> object();
            case '[' -> array();
            case '"' -> string();
            default -> scalar();
        };
    }

    private Map<String, Object> object() {
        Map<String, Object> members = new LinkedHashMap<>();
        at++;
        while (next() != '}') {
            at += next() == ',' ? 1 : 0;
            next();
            String name = string();
            next();
            at++; // the colon
            members.put(name, value());
        }
        at++;
        return members;
    }

    private List<Object> array() {
        List<Object> elements = new ArrayList<>();
        at++;
        while (next() != ']') {
            at += next() == ',' ? 1 : 0;
            elements.add(value());
        }
        at++;
        return elements;
    }

    private String string() {
        StringBuilder value = new StringBuilder();
        for (at++; text.charAt(at) != '"'; at++) {
            char each = text.charAt(at);
            if (each == '\\') {
                each = escape(text.charAt(++at));
            }
            value.append(each);
        }
        at++;
        return value.toString();
    }

    private char escape(char letter) {
        return switch (letter) {
            case 'n' -> '\n';
            case 'r' -> '\r';
            case 't' -> '\t';
            case 'b' -> '\b';
            case 'f' -> '\f';
            case 'u' -> {
                at += 4;
                yield (char) Integer.parseInt(text.substring(at - 3, at + 1), 16);
            }
            default -> letter;
        };
    }

    private Object scalar() {
        int from = at;
        while (at < text.length() && ",]} \t\r\n".indexOf(text.charAt(at)) < 0) {
            at++;
        }
        String word = text.substring(from, at);
        return switch (word) {
            case "null" -> null;
            case "true", "false" -> Boolean.valueOf(word);
            default -> Double.valueOf(word);
        };
    }
}
