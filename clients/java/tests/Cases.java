import com.sun.net.httpserver.Filter;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.SocketTimeoutException;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import java.util.logging.StreamHandler;
import javax.sql.DataSource;
import org.postgresql.PGConnection;
import org.postgresql.ds.PGSimpleDataSource;

import static java.nio.charset.StandardCharsets.UTF_8;

/**
 * The routes of test_cases.py: handlers as applications write them, with the mistakes that applications make. The
 * body of a request names its run. NOTES are what the handlers and their threads have seen.
 */
final class Cases {
    private static final Map<String, List<String>> NOTES = new ConcurrentHashMap<>();
    private static final Idempotence REQUESTS = requests(Agent.pool(System.getenv("IDEM_OWNER")));

    private Cases() {}

    interface Case {
        IdempotencyKey.Reply handle(Connection connection, String run) throws Exception;
    }

    static Idempotence requests(DataSource pool) {
        return new Idempotence(pool, "cases", Duration.ZERO, Duration.ofSeconds(5), null);
    }

    static void note(String run, String text) {
        NOTES.computeIfAbsent(run, name -> Collections.synchronizedList(new ArrayList<>())).add(text);
    }

    static void effect(Connection connection, String run, int amount) throws SQLException {
        try (var statement = connection.prepareStatement("INSERT INTO client_effect VALUES (?, ?)")) {
            statement.setString(1, run);
            statement.setInt(2, amount);
            statement.executeUpdate();
        }
    }

    static IdempotencyKey.Reply reply(int status, String body) {
        return new IdempotencyKey.Reply(status, Map.of("Content-Type", List.of("text/plain")), body.getBytes(UTF_8));
    }

    /** Has one effect and answers 201. */
    static IdempotencyKey.Reply created(Connection connection, String run) throws SQLException {
        effect(connection, run, 1);
        return reply(201, "created");
    }

    static IdempotencyKey.Reply withHeader(Connection connection, String run, String name, String value)
            throws SQLException {
        effect(connection, run, 1);
        return new IdempotencyKey.Reply(201, Map.of(name, List.of(value)), "created".getBytes(UTF_8));
    }

    static void execute(Connection connection, String sql) throws SQLException {
        Agent.execute(connection, sql);
    }

    static void serve(int port) throws Exception {
        Agent.helper = DriverManager.getConnection("jdbc:" + System.getenv("IDEM_OWNER"));
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 100);
        server.setExecutor(Executors.newCachedThreadPool());
        var guard = new IdempotencyKey(REQUESTS);
        var limited = new IdempotencyKey(REQUESTS, true, false, 1 << 20, null, Duration.ZERO, Duration.ofMillis(500));
        shared(server, guard, limited);
        Logger.getLogger("idempotence").addHandler(new StreamHandler() {
            @Override
            public void publish(LogRecord logged) {
                note("log", logged.getMessage() + " " + logged.getThrown());
            }
        });
        ownTransaction(server, guard);
        ofJava(server, guard);
        construct(guard);
        server.createContext("/notes/", exchange -> {
            try (exchange) {
                String run = exchange.getRequestURI().getPath().substring("/notes/".length());
                byte[] text = String.join("\n", NOTES.getOrDefault(run, List.of())).getBytes(UTF_8);
                exchange.sendResponseHeaders(200, text.length == 0 ? -1 : text.length);
                exchange.getResponseBody().write(text);
            }
        });
        server.start();
    }

    static void route(HttpServer server, IdempotencyKey guard, String path, Case handler) {
        server.createContext(path, guard.http(null, (connection, request) -> {
            String run = new String(request.body(), UTF_8);
            note(run, "call");
            return handler.handle(connection, run);
        }));
    }

    /** The cases that Go has, too. */
    private static void shared(HttpServer server, IdempotencyKey guard, IdempotencyKey limited) {
        route(server, guard, "/created", Cases::created);
        route(server, guard, "/late", (connection, run) -> {
            late(connection, run);
            return created(connection, run);
        });
        route(server, guard, "/late-refused", (connection, run) -> {
            late(connection, run);
            return reply(500, "no");
        });
        route(server, guard, "/running", (connection, run) -> {
            var reply = created(connection, run);
            start(run, "running", () -> execute(connection,
                    "INSERT INTO client_effect SELECT '" + run + "', 2 FROM pg_sleep(0.5)"));
            Thread.sleep(100);
            return reply;
        });
        route(server, guard, "/hold", (connection, run) -> {
            var reply = created(connection, run);
            Thread.sleep(700);
            return reply;
        });
        for (int status : new int[] {504, 422, 201}) {
            route(server, guard, "/slow-" + status, (connection, run) -> {
                effect(connection, run, 1);
                try (var statement = connection.createStatement()) {
                    statement.setQueryTimeout(1);
                    statement.execute("SELECT pg_sleep(3)");
                    note(run, "not cancelled");
                } catch (SQLException cancelled) {
                    return reply(status, "too slow");
                }
                return reply(status, "");
            });
        }
        route(server, guard, "/lost-422", (connection, run) -> {
            if (Collections.frequency(NOTES.get(run), "call") > 1) {
                return created(connection, run);
            }
            effect(connection, run, 1);
            try {
                Agent.act(connection, run, new Agent.Member("terminate", null, null));
                effect(connection, run, 1);
            } catch (SQLException lost) {
                return reply(422, "the handler takes the lost connection for a refusal");
            }
            throw new AssertionError("the connection was not lost");
        });
        route(server, limited, "/hang", (connection, run) -> {
            var reply = created(connection, run);
            for (long end = System.nanoTime() + 3_000_000_000L; System.nanoTime() < end;) {
                try {
                    Thread.sleep(10);
                } catch (InterruptedException ignored) {
                    continue; // a handler that cannot be interrupted
                }
            }
            attempt(run, "after the limit", () -> effect(connection, run, 1));
            return reply;
        });
        route(server, limited, "/hang-statement", (connection, run) -> {
            execute(connection, "SELECT pg_sleep(3)");
            return created(connection, run);
        });
        route(server, guard, "/throw", (connection, run) -> {
            created(connection, run);
            throw new IllegalStateException("the handler throws");
        });
    }

    private static void ownTransaction(HttpServer server, IdempotencyKey guard) {
        route(server, guard, "/commit", (connection, run) -> {
            var reply = created(connection, run);
            attempt(run, "commit", connection::commit);
            return reply;
        });
        route(server, guard, "/rollback", (connection, run) -> {
            var reply = created(connection, run);
            attempt(run, "rollback", connection::rollback);
            return reply;
        });
        for (String sql : List.of("commit", "rollback")) {
            route(server, guard, "/sql-" + sql, (connection, run) -> {
                var reply = created(connection, run);
                attempt(run, sql, () -> execute(connection, sql));
                return reply;
            });
        }
        route(server, guard, "/savepoint", (connection, run) -> {
            effect(connection, run, 1);
            var savepoint = connection.setSavepoint();
            effect(connection, run, 1);
            attempt(run, "savepoint", () -> execute(connection, "SELECT 1/0"));
            connection.rollback(savepoint);
            return reply(201, "created");
        });
        route(server, guard, "/other-database", (connection, run) -> {
            created(connection, run);
            try (var other = DriverManager.getConnection("jdbc:postgresql://127.0.0.1:1/none?user=none")) {
                return created(other, run);
            } catch (SQLException unreachable) { // 08001
                throw new IllegalStateException("audit", unreachable);
            }
        });
        route(server, guard, "/fail-final", (connection, run) -> {
            created(connection, run);
            throw new Idempotence.Final("1");
        });
        route(server, guard, "/other-deadline", (connection, run) -> {
            created(connection, run);
            throw new SocketTimeoutException("the payment processor");
        });
        route(server, guard, "/nested-busy", (connection, run) -> {
            throw new Idempotence.InProgress("another request", null);
        });
        route(server, guard, "/nested", (connection, run) -> {
            created(connection, run);
            REQUESTS.run("nested-" + run, "1", inner -> null);
            REQUESTS.run("nested-" + run, "2", inner -> null); // ID001 of another request
            return reply(201, "created");
        });
    }

    /** Cases of JDBC and of the server of the JDK. */
    private static void ofJava(HttpServer server, IdempotencyKey guard) {
        route(server, guard, "/close", (connection, run) -> {
            try (connection) {
                effect(connection, run, 1);
            }
            note(run, "closed: " + connection.isClosed());
            attempt(run, "use", () -> effect(connection, run, 1));
            return reply(201, "created");
        });
        route(server, guard, "/header-u010d", (connection, run) ->
                withHeader(connection, run, "Location", "/x\u010D\u010ASet-Cookie: stolen=1"));
        route(server, guard, "/header-fold", (connection, run) -> withHeader(connection, run, "Location", "/x\r\n y"));
        route(server, guard, "/header-nul", (connection, run) -> withHeader(connection, run, "Location", "/x\0"));
        route(server, guard, "/header-trailer", (connection, run) -> withHeader(connection, run, "trailer", "X-Sum"));
        route(server, guard, "/header-name", (connection, run) -> withHeader(connection, run, "X Sum", "1"));
        route(server, guard, "/header-empty", (connection, run) -> withHeader(connection, run, "", "1"));
        route(server, guard, "/content-length", (connection, run) ->
                withHeader(connection, run, "content-length", "1"));
        server.createContext("/middleware", guard.http(null, (connection, request) -> new IdempotencyKey.Reply(201,
                Map.of("Vary", List.of("Accept")), null))).getFilters().add(new Filter() {
                    @Override
                    public void doFilter(HttpExchange exchange, Chain chain) throws IOException {
                        exchange.getResponseHeaders().set("Vary", "Origin");
                        exchange.getResponseHeaders().set("X-Frame-Options", "DENY");
                        chain.doFilter(exchange);
                    }

                    @Override
                    public String description() {
                        return "headers";
                    }
                });
        route(server, guard, "/null", (connection, run) -> {
            created(connection, run);
            return null;
        });
        route(server, guard, "/error", (connection, run) -> {
            created(connection, run);
            throw new AssertionError("an Error");
        });
        route(server, guard, "/bad-status", (connection, run) -> {
            created(connection, run);
            return reply(103, "");
        });
        route(server, guard, "/unwrap", (connection, run) -> {
            var reply = created(connection, run);
            var driver = (Connection) connection.unwrap(PGConnection.class);
            start(run, "unwrapped", () -> {
                Thread.sleep(300);
                effect(driver, run, 3);
            });
            return reply;
        });
        route(server, guard, "/close-driver", (connection, run) -> {
            var reply = created(connection, run);
            ((Connection) connection.unwrap(PGConnection.class)).close();
            return reply;
        });
        for (int status : new int[] {201, 422, 503}) {
            route(server, guard, "/interrupted-" + status, (connection, run) -> {
                effect(connection, run, 1);
                Thread.currentThread().interrupt();
                return reply(status, "interrupted");
            });
        }
        route(server, guard, "/interrupted-500", (connection, run) -> {
            effect(connection, run, 1);
            Thread.currentThread().interrupt();
            throw new IllegalStateException("the handler throws");
        });
        route(server, guard, "/interrupted-error", (connection, run) -> {
            effect(connection, run, 1);
            Thread.currentThread().interrupt();
            throw new AssertionError("an Error");
        });
        route(server, guard, "/interrupted-run", (connection, run) -> {
            var answer = REQUESTS.run("inner-" + run, "1", inner -> {
                effect(inner, run, 1);
                Thread.currentThread().interrupt();
                return "1";
            });
            note(run, answer.status() + ", interrupted: " + Thread.interrupted());
            return reply(201, "created");
        });
        var config = new HikariConfig();
        config.setJdbcUrl("jdbc:postgresql://127.0.0.1:1/none?user=none");
        config.setConnectionTimeout(300);
        config.setInitializationFailTimeout(-1);
        var other = new HikariDataSource(config);
        route(server, guard, "/other-pool", (connection, run) -> {
            created(connection, run);
            try (var none = other.getConnection()) {
                return created(none, run);
            }
        });
        var unpooled = new PGSimpleDataSource();
        unpooled.setURL("jdbc:" + System.getenv("IDEM_OWNER"));
        route(server, new IdempotencyKey(requests(unpooled)), "/unpooled", Cases::created);
    }

    /** Makes every mistake that the constructors can recognise. */
    private static void construct(IdempotencyKey guard) {
        attempt("construction", "1", () -> new Idempotence(null, "cases"));
        attempt("construction", "2", () -> new IdempotencyKey(null));
        attempt("construction", "3", () -> new IdempotencyKey(new Idempotence(REQUESTS.pool(), null)));
        attempt("construction", "4", () -> new IdempotencyKey(REQUESTS, true, false, 0));
        attempt("construction", "5", () -> guard.http(null, null));
    }

    interface Action {
        void run() throws Exception;
    }

    /** Notes what an action throws. */
    private static void attempt(String run, String name, Action action) {
        try {
            action.run();
            note(run, name + ": done");
        } catch (Exception error) {
            note(run, name + ": " + Objects.toString(error.getMessage()).replace('\n', ' '));
        }
    }

    private static void start(String run, String name, Action action) {
        new Thread(() -> attempt(run, name, action)).start();
    }

    /** Uses everything that the handler has obtained, after the handler has returned. */
    private static void late(Connection connection, String run) throws SQLException {
        String insert = "INSERT INTO client_effect VALUES ('" + run + "', 3)";
        var statement = connection.createStatement();
        PreparedStatement prepared = connection.prepareStatement(insert);
        var query = connection.createStatement();
        var rows = query.executeQuery("SELECT generate_series(1, 3)");
        rows.next();
        var savepoint = connection.setSavepoint();
        start(run, "thread", () -> {
            Thread.sleep(300);
            attempt(run, "late", () -> statement.execute(insert));
            attempt(run, "late", prepared::executeUpdate);
            attempt(run, "late", () -> connection.createStatement().execute(insert));
            attempt(run, "late", rows::next);
            attempt(run, "late", () -> rows.getStatement().getConnection());
            attempt(run, "late", () -> connection.rollback(savepoint));
            attempt(run, "late", () -> connection.getMetaData().getTables(null, null, "x", null));
            attempt(run, "late", () -> connection.unwrap(PGConnection.class));
            attempt(run, "late", connection::commit);
        });
    }
}
