// The program that the tests of the client for Java run. `Agent calls` answers each line of standard input, a call of
// vectors.json, with a line of JSON. `Agent http PORT` serves the application of http_vectors.json, `Agent chaos PORT
// URI` that of the chaos test, and `Agent cases PORT` the routes of Cases.java. The database parses the JSON.

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetSocketAddress;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Function;
import java.util.stream.Collectors;
import javax.sql.DataSource;

import static java.nio.charset.StandardCharsets.UTF_8;

public class Agent {
    /** Of the application. */
    static final class Refused extends RuntimeException {}

    /** A member of an object: its value as text, and as JSON. */
    record Member(String name, String text, String json) {}

    /** In the place of the character 0, which jsonb does not have. */
    static final String ZERO = "\uE000";

    static final Map<String, DataSource> POOLS = new ConcurrentHashMap<>();
    static final Map<String, AtomicInteger> CALLS = new ConcurrentHashMap<>();
    static Connection helper;

    public static void main(String[] arguments) throws Exception {
        if (arguments[0].equals("cases")) {
            Cases.serve(Integer.parseInt(arguments[1]));
            return;
        } else if (arguments[0].equals("chaos")) {
            chaos(Integer.parseInt(arguments[1]), pool(arguments[2]));
            return;
        }
        helper = DriverManager.getConnection("jdbc:" + System.getenv("IDEM_OWNER"));
        if (arguments[0].equals("http")) {
            serve(Integer.parseInt(arguments[1]));
            return;
        }
        var lines = new BufferedReader(new InputStreamReader(System.in, UTF_8));
        var out = new PrintStream(System.out, true, UTF_8);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            out.println(new Agent().answer(line));
        }
    }

    /** A pool of 4, as an application has one. */
    static DataSource pool(String uri) {
        return POOLS.computeIfAbsent(uri, name -> {
            var config = new HikariConfig();
            config.setJdbcUrl("jdbc:" + name);
            config.setMaximumPoolSize(4);
            config.setMinimumIdle(0);
            config.setConnectionTimeout(2000);
            config.setInitializationFailTimeout(-1);
            return new HikariDataSource(config);
        });
    }

    static List<Member> members(Connection connection, String sql, String... arguments) throws SQLException {
        List<Member> members = new ArrayList<>();
        try (var statement = connection.prepareStatement(sql)) {
            for (int i = 0; i < arguments.length; i++) {
                statement.setString(i + 1, arguments[i].replace("\\u0000", ZERO));
            }
            try (var row = statement.executeQuery()) {
                while (row.next()) {
                    String text = row.getString(2);
                    text = text == null ? null : text.replace(ZERO, "\0");
                    members.add(new Member(row.getString(1), text, row.getString(3)));
                }
            }
        }
        return members;
    }

    static Map<String, Member> object(Connection connection, String json) throws SQLException {
        Map<String, Member> object = new TreeMap<>();
        members(connection, "SELECT key, value #>> '{}', value::text FROM jsonb_each(CAST(? AS jsonb))", json)
                .forEach(member -> object.put(member.name, member));
        return object;
    }

    static List<Member> elements(Connection connection, String json) throws SQLException {
        String sql = "SELECT '', value #>> '{}', value::text FROM jsonb_array_elements(CAST(? AS jsonb))";
        return members(connection, sql, json);
    }

    /** The actions of the n-th call of a work, or of its last one. */
    static List<Member> actions(Connection connection, String work, int call) throws SQLException {
        return members(connection, """
                SELECT a.key, a.value #>> '{}', a.value::text
                FROM CAST(? AS jsonb) AS w,
                     jsonb_array_elements(w -> (least(CAST(? AS int), jsonb_array_length(w)) - 1))
                         WITH ORDINALITY AS x(action, i),
                     jsonb_each(action) AS a
                ORDER BY i""", work, String.valueOf(call));
    }

    static void act(Connection connection, String run, Member action) throws Exception {
        switch (action.name) {
            case "effect" ->
                execute(connection, "INSERT INTO client_effect VALUES ('%s', %s)".formatted(run, action.text));
            case "sql" -> execute(connection, action.text);
            case "caught" -> {
                try {
                    execute(connection, action.text);
                } catch (SQLException caught) {
                    return;
                }
                throw new AssertionError("a statement that fails was expected");
            }
            case "foreign" -> foreign(action.text);
            case "sleep" -> Thread.sleep((long) (Double.parseDouble(action.text) * 1000));
            case "terminate" -> {
                String pid = members(connection, "SELECT pg_backend_pid(), '', ''").get(0).name;
                execute(helper, "SELECT pg_terminate_backend(" + pid + ", 5000)");
            }
            case "raise" -> throw new Refused();
            case "pad" -> { }
            default -> throw new AssertionError("no such action: " + action.name);
        }
    }

    /** An error of another connection than that of the transaction. */
    static void foreign(String kind) throws SQLException {
        if (kind.equals("unreachable")) {
            DriverManager.getConnection("jdbc:postgresql://127.0.0.1:1/none?user=none").close();
        }
        try (Connection other = pool(System.getenv("IDEM_OWNER")).getConnection()) {
            execute(other, "DO $$ BEGIN RAISE SQLSTATE '" + kind + "'; END $$");
        }
    }

    static void execute(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    // ------------------------------------------------------------------------------------------------------- calls

    private int works;

    String answer(String line) throws Exception {
        Map<String, Member> call = object(helper, line);
        String told;
        try {
            told = called(call);
        } catch (Exception error) {
            told = problem(error);
        }
        return "{" + told + ", \"works\": " + works + "}";
    }

    static String problem(Exception error) throws Exception {
        if (error instanceof Refused) {
            return "\"error\": \"application\"";
        } else if (error instanceof Idempotence.InProgress busy) {
            return "\"error\": \"in_progress\", \"expires\": " + (busy.expiresAt != null);
        } else if (error instanceof Idempotence.Interrupted stopped) {
            return "\"error\": \"interrupted\", \"point\": " + quote(stopped.point);
        }
        if (!(error instanceof SQLException)) {
            throw error;
        }
        String state = Idempotence.state(error);
        return "\"error\": " + quote(state == null || state.equals("08001") ? "connection" : state);
    }

    static String quote(String text) {
        return text == null ? "null" : Json.quote(text);
    }

    static Duration duration(Member seconds, Duration otherwise) {
        return seconds == null ? otherwise : Duration.ofMillis((long) (Double.parseDouble(seconds.text) * 1000));
    }

    static Object key(Member key) throws SQLException {
        return switch (key.json.charAt(0)) {
            case '"' -> key.text;
            case '{' -> java.util.UUID.fromString(object(helper, key.json).get("uuid").text);
            default -> Long.valueOf(key.text);
        };
    }

    String called(Map<String, Member> call) throws Exception {
        DataSource pool = pool(call.get("uri").text);
        String session = call.get("session").text;
        var requests = new Idempotence(pool, session, duration(call.get("wait"), Duration.ofMillis(200)),
                duration(call.get("deadline"), Duration.ofSeconds(30)), duration(call.get("ttl"), null));
        return switch (call.get("call").text) {
            case "run" -> {
                Member payload = call.get("payload");
                yield told(requests.run(key(call.get("key")), payload.text == null ? null : payload.json,
                        connection -> work(connection, call.get("run").text, call.get("work").json)));
            }
            case "lookup" -> told(requests.lookup(key(call.get("key")), duration(call.get("wait"), null)));
            case "once" -> once(pool, session, call);
            case "check" -> {
                var found = requests.check();
                yield "\"edition\": " + quote(String.valueOf(found.edition())) + ", \"problems\": "
                        + found.problems().stream().map(Agent::quote).toList();
            }
            default -> throw new AssertionError("no such call");
        };
    }

    static String told(Idempotence.Answer answer) {
        return "\"status\": %s, \"replayed\": %s, \"response\": %s".formatted(quote(answer.status()), answer.replayed(),
                answer.response());
    }

    String work(Connection connection, String run, String json) throws Exception {
        works++;
        for (Member action : actions(helper, json, works)) {
            String response = action.text == null ? null : action.json;
            if (action.name.equals("return")) {
                return response;
            } else if (action.name.equals("final")) {
                throw new Idempotence.Final(response);
            }
            act(connection, run, action);
        }
        return null;
    }

    static String once(DataSource pool, String session, Map<String, Member> call) throws SQLException {
        List<Object> keys = new ArrayList<>();
        for (Member each : elements(helper, call.get("keys").json)) {
            keys.add(key(each));
        }
        try (Connection connection = pool.getConnection()) {
            connection.setAutoCommit(false);
            List<Object> fresh = Idempotence.once(connection, session, keys);
            if (call.containsKey("rollback")) {
                connection.rollback();
            } else {
                connection.commit();
            }
            return "\"new\": " + fresh.stream().map(key -> quote(key.toString())).toList();
        }
    }

    // -------------------------------------------------------------------------------------------------------- HTTP

    static void serve(int port) throws Exception {
        DataSource pool = pool(System.getenv("IDEM_OWNER"));
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 100);
        server.setExecutor(Executors.newCachedThreadPool());
        for (Member each : elements(helper, System.getenv("IDEM_ROUTES"))) {
            Map<String, Member> route = object(helper, each.json);
            String identity = route.containsKey("identity") ? route.get("identity").text : null;
            var context = server.createContext(route.get("path").text);
            if (route.containsKey("sql")) {
                context.setHandler(exchange -> other(pool, exchange));
                continue;
            }
            var requests = new Idempotence(pool, route.get("session").text, Duration.ZERO, Duration.ofSeconds(5), null);
            var methods = !route.containsKey("methods") ? null
                    : elements(helper, route.get("methods").json).stream().map(Member::text)
                            .collect(Collectors.toSet());
            var guard = new IdempotencyKey(requests, !route.containsKey("required"), route.containsKey("strict"),
                    route.containsKey("max_body") ? Integer.parseInt(route.get("max_body").text) : 1 << 20, methods,
                    duration(route.get("wait"), Duration.ZERO),
                    duration(route.get("handler_timeout"), Duration.ofSeconds(60)));
            Function<HttpExchange, String> caller = identity == null ? null
                    : exchange -> exchange.getRequestHeaders().getFirst(identity);
            var handler = route.containsKey("answer") ? guard.answer(caller) : guard.http(caller, Agent::reply);
            context.setHandler(exchange -> {
                String refused = exchange.getRequestHeaders().getFirst("X-Refuse");
                if (refused == null) {
                    handler.handle(exchange);
                } else {
                    exchange.sendResponseHeaders(Integer.parseInt(refused), -1);
                    exchange.close();
                }
            });
        }
        server.start();
    }

    static void chaos(int port, DataSource pool) throws Exception {
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 100);
        server.setExecutor(Executors.newCachedThreadPool());
        var guard = new IdempotencyKey(new Idempotence(pool, "chaos"));
        server.createContext("/pay", guard.http(null, (connection, request) -> {
            String sql = "INSERT INTO chaos_effect (key) SELECT CAST(? AS jsonb)->>'key' RETURNING n, '', ''";
            String n = members(connection, sql, new String(request.body(), UTF_8)).get(0).name;
            return new IdempotencyKey.Reply(201, Map.of(), ("{\"n\": " + n + "}").getBytes(UTF_8));
        }));
        server.start();
    }

    static void other(DataSource pool, HttpExchange exchange) {
        try (exchange; Connection connection = pool.getConnection()) {
            execute(connection, "SELECT 1");
            exchange.sendResponseHeaders(200, -1);
        } catch (Exception error) {
            error.printStackTrace();
        }
    }

    static IdempotencyKey.Reply reply(Connection connection, IdempotencyKey.Request request) throws Exception {
        Map<String, Member> body = object(helper, new String(request.body(), UTF_8));
        String run = body.get("run").text;
        int call = CALLS.computeIfAbsent(run, name -> new AtomicInteger()).incrementAndGet();
        for (Member action : actions(helper, body.get("work").json, call)) {
            if (action.name.equals("respond")) {
                return made(object(helper, action.json));
            }
            act(connection, run, action);
        }
        throw new AssertionError("no answer");
    }

    static IdempotencyKey.Reply made(Map<String, Member> respond) throws SQLException {
        Map<String, List<String>> headers = new TreeMap<>(String.CASE_INSENSITIVE_ORDER);
        if (respond.containsKey("headers")) {
            object(helper, respond.get("headers").json)
                    .forEach((name, value) -> headers.put(name, List.of(value.text)));
        }
        String text = respond.containsKey("text") ? respond.get("text").text : "";
        byte[] body = text.getBytes(UTF_8);
        if (respond.containsKey("json")) {
            headers.putIfAbsent("Content-Type", List.of("application/json"));
            body = respond.get("json").json.getBytes(UTF_8);
        } else if (respond.containsKey("base64")) {
            body = Base64.getDecoder().decode(respond.get("base64").text);
        } else if (respond.containsKey("fill")) {
            body = "x".repeat(Integer.parseInt(respond.get("fill").text)).getBytes(UTF_8);
        }
        return new IdempotencyKey.Reply(Integer.parseInt(respond.get("status").text), headers, body);
    }
}
