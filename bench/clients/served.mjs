// The applications in node that rates.py measures: served.mjs FRAMEWORK DRIVER URI PORT. POST /unprotected inserts a key
// in a transaction, as the driver's documentation does it; POST /protected does the same through the adapter.

import express from 'express';
import fastify from 'fastify';
import * as forExpress from 'idempotence/express';
import * as forFastify from 'idempotence/fastify';
import pg from 'pg';
import postgres from 'postgres';

const [framework, driver, uri, port] = process.argv.slice(2);

const drivers = {
  pg: {
    pool: () => new pg.Pool({ connectionString: uri, max: 8 }).on('error', console.error),
    insert: async (conn, key) =>
      ({ n: Number((await conn.query('INSERT INTO chaos_effect (key) VALUES ($1) RETURNING n', [key])).rows[0].n) }),
    transaction: async (pool, work) => {
      const client = await pool.connect();
      try {
        await client.query('BEGIN');
        const result = await work(client);
        await client.query('COMMIT');
        return result;
      } catch (error) {
        await client.query('ROLLBACK');
        throw error;
      } finally {
        client.release();
      }
    },
  },
  postgres: {
    pool: () => postgres(uri, { max: 8 }),
    insert: async (sql, key) => {
      const [row] = await sql`INSERT INTO chaos_effect (key) VALUES (${key}) RETURNING n`;
      return { n: Number(row.n) };
    },
    transaction: (sql, work) => sql.begin(work),
  },
};
const { insert, transaction, ...made } = drivers[driver];
const pool = made.pool();

if (framework === 'fastify') {
  const app = fastify();
  app.post('/unprotected', async (request, reply) =>
    reply.code(201).send(await transaction(pool, (conn) => insert(conn, request.body.key))));
  app.post('/protected', forFastify.idempotent(pool, 'chaos', async (request, reply, conn) =>
    reply.code(201).send(await insert(conn, request.body.key))));
  await app.listen({ port: Number(port), host: '127.0.0.1' });
} else {
  const app = express();
  app.use(express.json());
  app.post('/unprotected', async (request, response) => {
    response.status(201).json(await transaction(pool, (conn) => insert(conn, request.body.key)));
  });
  app.post('/protected', forExpress.idempotent(pool, 'chaos', async (request, response, conn) => {
    response.status(201).json(await insert(conn, request.body.key));
  }));
  app.listen(Number(port), '127.0.0.1');
}
