// The application in Java that rates.py measures: Served URI PORT. POST /unprotected inserts a key in a transaction,
// and POST /protected does the same through the adapter.

import static java.nio.charset.StandardCharsets.UTF_8;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.sql.Connection;
import java.sql.SQLException;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import javax.sql.DataSource;

public class Served {
    public static void main(String[] arguments) throws Exception {
        var config = new HikariConfig();
        config.setJdbcUrl(arguments[0]);
        config.setMaximumPoolSize(8);
        config.setAutoCommit(false);
        DataSource pool = new HikariDataSource(config);
        var guard = new IdempotencyKey(new Idempotence(pool, "chaos"));
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[1])), 100);
        server.setExecutor(Executors.newCachedThreadPool());
        server.createContext("/protected", guard.http(null, (connection, request) ->
            new IdempotencyKey.Reply(201, Map.of("Content-Type", List.of("application/json")),
                insert(connection, request.body()))));
        server.createContext("/unprotected", exchange -> unprotected(pool, exchange));
        server.start();
    }

    static void unprotected(DataSource pool, HttpExchange exchange) throws IOException {
        try (exchange; Connection connection = pool.getConnection()) {
            byte[] answer = insert(connection, exchange.getRequestBody().readAllBytes());
            connection.commit();
            exchange.getResponseHeaders().set("Content-Type", "application/json");
            exchange.sendResponseHeaders(201, answer.length);
            exchange.getResponseBody().write(answer);
        } catch (SQLException error) {
            throw new IOException(error);
        }
    }

    /** The key is the only string in {"key": "…"} that is not its name. */
    static byte[] insert(Connection connection, byte[] body) throws SQLException {
        String key = new String(body, UTF_8).split("\"")[3];
        try (var statement = connection.prepareStatement("INSERT INTO chaos_effect (key) VALUES (?) RETURNING n")) {
            statement.setString(1, key);
            try (var row = statement.executeQuery()) {
                row.next();
                return ("{\"n\": " + row.getLong(1) + "}").getBytes(UTF_8);
            }
        }
    }
}
