// Transfers money once, however often it is asked to. JDBC; usage: java -cp postgresql.jar Retry.java URL [KEY]
//
// setup.sql makes what it needs.

import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;
import org.postgresql.util.PGInterval;
import org.postgresql.util.PGobject;

public class Retry {
    record Ticket(String status, boolean replayed, String response) {}

    /** Asks until there is an answer, with the same key and payload each time. */
    static Ticket transfer(String url, String key, int from, int to, BigDecimal amount) throws Exception {
        SQLException error = null;
        for (int attempt = 0; attempt < 10; attempt++) {
            try (Connection connection = DriverManager.getConnection(url)) {
                connection.setAutoCommit(false);
                Ticket ticket = execute(connection, key, from, to, amount);
                connection.commit();
                if (!ticket.status().equals("in_progress")) {
                    return ticket;
                }
                error = new SQLException("another attempt is still at work");
            } catch (SQLException e) {
                // Connection lost, serialization failure, deadlock, a wait that ran out. Anything else
                // is an answer, or a mistake: ID012 the mistake of asking the wrong server, which knows
                // nothing of what was done (nodes.py). Closing the connection rolls back.
                if (!String.valueOf(e.getSQLState()).matches("08...|25P03|40001|40P01|53...|55P03|57P0[1-35]")) {
                    throw e;
                }
                error = e;
            }
            Thread.sleep((long) (ThreadLocalRandom.current().nextDouble(0.5, 1) * Math.min(50L << attempt, 2000)));
        }
        throw error;
    }

    /** One transaction: begin, work, record. */
    static Ticket execute(Connection connection, String key, int from, int to, BigDecimal amount) throws SQLException {
        String payload = "{\"from\": %d, \"to\": %d, \"amount\": \"%s\"}".formatted(from, to, amount.toPlainString());
        try (PreparedStatement begin = connection.prepareStatement(
                "SELECT status, replayed, response FROM idem_begin('payments', ?, payload => ?, wait => ?)")) {
            begin.setString(1, key); // setObject with a java.util.UUID would look for a function that takes a uuid
            begin.setObject(2, jsonb(payload)); // or setString with ?::jsonb
            begin.setObject(3, new PGInterval("5 seconds")); // or setString with ?::interval
            try (ResultSet row = begin.executeQuery()) {
                row.next();
                if (!row.getString("status").equals("started")) {
                    return new Ticket(row.getString("status"), row.getBoolean("replayed"), row.getString("response"));
                }
            }
        }

        BigDecimal balance = null;
        try (PreparedStatement debit = connection.prepareStatement(
                "UPDATE account SET balance = balance - ? WHERE id = ? AND balance >= ? RETURNING balance")) {
            debit.setBigDecimal(1, amount);
            debit.setInt(2, from);
            debit.setBigDecimal(3, amount);
            try (ResultSet row = debit.executeQuery()) {
                if (row.next()) {
                    balance = row.getBigDecimal(1);
                }
            }
        }
        String response = "{\"error\": \"insufficient funds\"}";
        if (balance != null) {
            try (PreparedStatement credit = connection.prepareStatement(
                    "UPDATE account SET balance = balance + ? WHERE id = ?")) {
                credit.setBigDecimal(1, amount);
                credit.setInt(2, to);
                if (credit.executeUpdate() == 0) {
                    // Rolls back: the key is as if it had never been used.
                    throw new SQLException("there is no account " + to);
                }
            }
            response = "{\"balance\": \"%s\"}".formatted(balance.toPlainString());
        }

        try (PreparedStatement record = connection.prepareStatement(
                "SELECT idem_record('payments', ?, ?, failed => ?, ttl => ?)")) {
            record.setString(1, key);
            record.setObject(2, jsonb(response));
            record.setBoolean(3, balance == null);
            record.setObject(4, new PGInterval("12 hours"));
            record.execute();
        }
        return new Ticket(balance == null ? "failed" : "succeeded", false, response);
    }

    static PGobject jsonb(String json) throws SQLException {
        PGobject value = new PGobject();
        value.setType("jsonb");
        value.setValue(json);
        return value;
    }

    public static void main(String[] args) throws Exception {
        // A wrong address, login or database is told here, and not retried.
        DriverManager.getConnection(args[0]).close();
        // Made once, before the first attempt, and kept with the order that it belongs to.
        String key = args.length > 1 ? args[1] : UUID.randomUUID().toString();
        String[][] requests = {{key, "30.00"}, {key, "30.00"}, {key + "-b", "1000.00"}};
        for (String[] request : requests) {
            Ticket ticket = transfer(args[0], request[0], 1, 2, new BigDecimal(request[1]));
            System.out.println(ticket.status() + (ticket.replayed() ? " replayed " : " executed ") + ticket.response());
        }
    }
}
