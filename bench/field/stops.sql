-- For the kills: pay() says so when it has done the work of a key that is to be stopped there, and gives the killer
-- time. The client is killed then; the server goes on and knows nothing of it, as it would.

CREATE TABLE to_stop (key text PRIMARY KEY);

ALTER FUNCTION pay(jsonb) RENAME TO pay_without_stop;
CREATE FUNCTION pay(request jsonb) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  answer jsonb := pay_without_stop(request);
BEGIN
  IF EXISTS (SELECT FROM to_stop s WHERE s.key = request->>'key') THEN
    RAISE NOTICE 'stop';
    PERFORM pg_sleep(0.2);
  END IF;
  RETURN answer;
END
$$;
