// An application with one protected route at /, for each framework, and a caller who asks it.

import { once } from 'node:events';
import http from 'node:http';
import express5 from 'express';
import express4 from 'express4';
import fastify5 from 'fastify';
import fastify4 from 'fastify4';
import * as forExpress from 'idempotence/express';
import * as forFastify from 'idempotence/fastify';
import { ask, idle, Stage } from './harness.mjs';

export const SESSION = 'http-clients';
export const stage = new Stage('');
let keys = 0;
export const fresh = () => `${process.pid}-${Date.now()}-${keys++}`;
/** An effect of the request with this key, and how many there are. */
export const effect = (conn, key) => ask(conn, `INSERT INTO client_effect VALUES ('${key}', 1)`);
export const effects = async (key) =>
  (await stage.sql(`SELECT count(*)::int FROM client_effect WHERE run = '${key}'`))[0][0];
export const statusOf = async (key) =>
  (await stage.sql(`SELECT status FROM idem_lookup('${SESSION}', ':${key}')`))[0][0];

/** How a route is protected: by a handler that writes to `res`, and by one that returns its answer. */
export const writing = (pool, handler, options) => forExpress.idempotent(pool, SESSION, handler, options);
export const returning = (pool, handler, options) => forExpress.idempotency(pool, SESSION)(handler, options);

/** `use`: registers middleware in front of the route; `parse`: the parsers of bodies. */
export async function expressApp(
  express,
  middleware,
  { use = () => {}, parse = (app) => app.use(express.json()) } = {},
) {
  const app = express();
  use(app);
  parse(app, express);
  app.all('/', middleware);
  app.use((error, _request, response, _next) => response.status(error.status ?? 500).json({ told: error.message }));
  const server = app.listen(0, '127.0.0.1');
  if (!server.listening) await once(server, 'listening');
  return server;
}

export async function fastifyApp(fastify, pool, handler, options, { use = () => {}, schema } = {}) {
  const app = fastify();
  await use(app);
  app.setErrorHandler((error, _request, reply) => reply.code(error.statusCode ?? 500).send({ told: error.message }));
  app.post('/', { ...(schema && { schema }), ...forFastify.idempotent(pool, SESSION, handler, options) });
  await app.listen({ port: 0, host: '127.0.0.1' });
  return app.server;
}

export const expresses = { 'express 5': express5, 'express 4': express4 };
export const fastifies = { 'fastify 5': fastify5, 'fastify 4': fastify4 };

/** Asks the route. With a `signal`, the caller may disconnect. The headers of the answer are those that Node reads. */
export async function request(
  server,
  key,
  { body = '{"a":1}', headers = {}, method = 'POST', path = '/', timeout = 10_000, signal } = {},
) {
  const request = http.request({
    host: '127.0.0.1',
    port: server.address().port,
    method,
    path,
    signal,
    agent: false,
    headers: {
      ...(key === undefined ? {} : { 'Idempotency-Key': key }),
      ...(body === null
        ? { 'Content-Length': 0 }
        : { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body) }),
      ...headers,
    },
  });
  request.setTimeout(timeout, () => request.destroy(new Error(`no answer in ${timeout} ms`)));
  request.end(body ?? undefined);
  const [response] = await once(request, 'response');
  const chunks = [];
  for await (const chunk of response) chunks.push(chunk);
  const bytes = Buffer.concat(chunks);
  return {
    status: response.statusCode,
    reason: response.statusMessage,
    headers: response.headers,
    bytes,
    text: String(bytes),
    replayed: response.headers['idempotent-replayed'] === 'true',
  };
}
export const told = ({ text }) => JSON.parse(text).told;
export const problemOf = ({ text }) => JSON.parse(text).type.split('#')[1];

/** Runs `use(post, key)` against a server, and looks that every connection is back afterwards. */
export async function serving(opened, pool, use) {
  const server = await opened;
  const key = fresh();
  try {
    await use((options) => request(server, key, options), key, server);
  } finally {
    server.closeAllConnections();
    server.close();
  }
  if (typeof pool !== 'function') await idle(pool);
}
