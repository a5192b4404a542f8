// Compiled and never run: what the types accept, and what they refuse.

import express, { type Request, type Response } from 'express';
import fastify, { type FastifyReply, type FastifyRequest } from 'fastify';
import pg from 'pg';
import postgres from 'postgres';
import { check, Client, complete, Final, lease, lookup, once, run, type Answer } from 'idempotence';
import * as forExpress from 'idempotence/express';
import * as forFastify from 'idempotence/fastify';

const pool = new pg.Pool();
const sql = postgres();

const moved: Answer<{ moved: number }> = await run(pool, 'payments', 'k', { amount: 1 }, async (conn) => {
  const { rowCount }: pg.QueryResult = await conn.query('UPDATE account SET balance = 0');
  if (rowCount === 0) throw new Final({ error: 'no account' });
  // @ts-expect-error it is a client of pg
  conn.savepoint();
  return { moved: 1 };
});
// @ts-expect-error there is no such member
moved.response.amount;
await run(
  sql,
  'payments',
  7n,
  null,
  async (tx) => {
    const rows: postgres.RowList<postgres.Row[]> = await tx`SELECT 1`;
    await tx.savepoint((inner) => inner`SELECT 2`);
    return rows.length;
  },
  { claim: true, deadline: 10, ttl: 60 },
);
// @ts-expect-error a key is a string or a number
await run(pool, 'payments', {}, null, () => 1);
// @ts-expect-error seconds are a number
await run(pool, 'payments', 'k', null, () => 1, { deadline: '10 s' });

await lease(
  pool,
  'payments',
  'k',
  null,
  async (held) => {
    await fetch('http://127.0.0.1', { signal: held.signal });
    await held.checkpoint('charged', { charge: held.token });
    await held.record({ charge: 1 });
  },
  { lease: 10 },
);
const fresh: string[] = await once(await pool.connect(), 'mail', ['a', 'b']);
const problems: string[] = await check(sql, 'payments');
const { status }: { status: string } = await lookup(sql, 'payments', fresh[0] ?? problems[0] ?? 1);
await new Client(sql, 'courier', { window: 5 }).send({ status }, (tx) => tx`SELECT 1`);

const app = express();
app.post(
  '/',
  express.json(),
  forExpress.idempotent(
    pool,
    'payments',
    async (req: Request, res: Response, conn) => {
      await conn.query('SELECT 1');
      res.json(req.body);
    },
    { identity: (req) => String(req.ip) },
  ),
);
app.post(
  '/',
  forExpress.idempotent(
    pool,
    'payments',
    async (_req, res, held) => {
      await held.checkpoint('half');
      res.end();
    },
    { lease: 30 },
  ),
);
app.post(
  '/',
  // @ts-expect-error there is no such option
  forExpress.idempotent(pool, 'payments', (_req, res) => res.end(), { requried: true }),
);
const idempotent = forExpress.idempotency(pool, 'payments', { identity: async (req: Request) => String(req.ip) });
app.post(
  '/',
  idempotent(async (req, conn) => {
    const { rows }: pg.QueryResult = await conn.query('SELECT 1');
    return { status: 201, headers: { Location: '/1', Link: ['<a>', '<b>'] }, body: { rows, url: req.url } };
  }),
);
app.post(
  '/',
  idempotent(
    async (_req, held) => {
      await held.checkpoint('half');
      return { status: 204 };
    },
    { lease: 30 },
  ),
);
app.post(
  '/',
  // @ts-expect-error a handler returns its answer
  idempotent(async () => 'done'),
);
app.get('/', forExpress.answer(pool, 'payments', { wait: 2 }));

const server = fastify();
server.post(
  '/',
  forFastify.idempotent(sql, 'payments', async (request: FastifyRequest, reply: FastifyReply, tx) => {
    await tx`SELECT 1`;
    return reply.code(201).send(request.body);
  }),
);
server.get('/', forFastify.answer(sql, 'payments'));

const stop = new AbortController();
await complete(
  pool,
  'payments',
  async (held) => {
    await held.checkpoint('half', held.state);
    return { done: held.key };
  },
  { concurrency: 2, maxAttempts: 5, signal: stop.signal },
);
