-- The cluster of docs/scaling.md, Shards behind PL/Proxy, on the proxy. The number of shards is a power of 2.

CREATE EXTENSION plproxy;
CREATE SCHEMA plproxy;
CREATE TABLE plproxy.version (version int NOT NULL);
CREATE TABLE plproxy.shard (number int PRIMARY KEY, place text NOT NULL);
CREATE FUNCTION plproxy.get_cluster_version(cluster text) RETURNS int LANGUAGE sql
  AS 'SELECT version FROM plproxy.version';                                         -- PL/Proxy asks with each call
CREATE FUNCTION plproxy.get_cluster_partitions(cluster text) RETURNS SETOF text LANGUAGE sql
  AS 'SELECT place FROM plproxy.shard ORDER BY number';                             -- and this if the version is new
CREATE FUNCTION plproxy.get_cluster_config(cluster text, OUT key text, OUT val text) RETURNS SETOF record LANGUAGE sql
  AS $$VALUES ('connection_lifetime', '600')$$;
INSERT INTO plproxy.version VALUES (1);
INSERT INTO plproxy.shard VALUES (0, 'host=10.0.0.10 dbname=shop'), (1, 'host=10.0.0.11 dbname=shop');
