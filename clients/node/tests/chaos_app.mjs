// The application that clients/chaos kills: chaos_app.mjs FRAMEWORK DRIVER URI PORT [unprotected]. FRAMEWORK is
// fastify, express (the handler returns its answer) or express-res (it writes it to res). Unprotected, it is what
// bench/clients compares with.

import express from 'express';
import fastify from 'fastify';
import * as forExpress from 'idempotence/express';
import * as forFastify from 'idempotence/fastify';
import { ask, drivers } from './harness.mjs';

const [framework, driver, uri, port, unprotected] = process.argv.slice(2);
const { pathname, searchParams } = new URL(uri.replace('///', '//localhost/'));
const pool = drivers[driver]({
  host: searchParams.get('host'),
  port: Number(searchParams.get('port')),
  user: searchParams.get('user'),
  database: pathname.slice(1),
});

const insert = async (conn, key) => ({
  n: Number((await ask(conn, `INSERT INTO chaos_effect (key) VALUES ('${key}') RETURNING n`))[0].n),
});

async function inTransaction(work) {
  if (driver === 'postgres') return pool.begin(work);
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
}

if (framework === 'fastify') {
  const app = fastify();
  app.post(
    '/pay',
    unprotected
      ? async (request, reply) => reply.code(201).send(await inTransaction((conn) => insert(conn, request.body.key)))
      : forFastify.idempotent(pool, 'chaos', async (request, reply, conn) =>
          reply.code(201).send(await insert(conn, request.body.key)),
        ),
  );
  await app.listen({ port: Number(port), host: '127.0.0.1' });
} else {
  const app = express();
  app.post(
    '/pay',
    express.json(),
    unprotected
      ? async (request, response) => {
          response.status(201).json(await inTransaction((conn) => insert(conn, request.body.key)));
        }
      : framework === 'express-res'
        ? forExpress.idempotent(pool, 'chaos', async (request, response, conn) => {
            response.status(201).json(await insert(conn, request.body.key));
          })
        : forExpress.idempotency(
            pool,
            'chaos',
          )(async (request, conn) => ({ status: 201, body: await insert(conn, request.body.key) })),
  );
  app.listen(Number(port), '127.0.0.1');
}
