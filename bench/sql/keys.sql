-- The keys of outcomes that are kept when a measurement begins, by their number.

CREATE FUNCTION kept_key(n bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT '01' || 980000 + n / 9000 || '-' || 1000 + n % 9000
         || '-7a3c-8b5c-' || 100000000000 + n * 7990271 % 900000000000
$$;
-- These keys consist of decimal digits and cover the same range as the random keys of the scripts. Otherwise
-- the scripts would reach only some of the pages that hold these keys.
CREATE FUNCTION kept_random_key(n bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT 10000000 + (hash & 4611686018427387903) % 90000000 || '-' || 1000 + (hash >> 20 & 65535) % 9000
         || '-4a3c-8b5c-' || 100000000000 + n
  FROM hashint8extended(n, 0) hash
$$;
