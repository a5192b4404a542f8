-- What the rows about growth need besides.

-- Client sessions at work, as idem_register makes them, under names that a script can put together.
CREATE FUNCTION client_name(n integer) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT '01990000-0000-7000-8000-' || 100000000000 + n
$$;
CREATE PROCEDURE make_clients(first integer, last integer, window_size integer) LANGUAGE sql AS $$
  INSERT INTO idempotence.session_live (id, created_at, last_seen, owner, window_size, ordering, timeout, node)
  SELECT client_name(n)::uuid, now(), now(), current_role::regrole, window_size, 'a', '1 day', idem_node() FROM generate_series(first, last) n
$$;

-- Fills the windows of these sessions. Each request is a transaction.
CREATE PROCEDURE fill_windows(first integer, last integer, laps integer) LANGUAGE plpgsql AS $$
BEGIN
  FOR lap IN 1..laps LOOP
    FOR n IN first..last LOOP
      PERFORM idem_begin(client_name(n), lap);
      PERFORM idem_record(client_name(n), lap, '{"status": "booked", "transfer": 4711}');
      COMMIT;
    END LOOP;
  END LOOP;
END
$$;

-- Responses by their size in bytes. Compression gains little on them.
CREATE TABLE answer (
  size integer PRIMARY KEY,
  body text    NOT NULL
);
CREATE PROCEDURE make_answer(size integer) LANGUAGE sql AS $$
  INSERT INTO answer SELECT size, to_jsonb(left(string_agg(md5(n::text), ''), size))::text FROM generate_series(0, size / 32) n
$$;
