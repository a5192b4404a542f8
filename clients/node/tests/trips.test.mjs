// Round trips to the database, counted by clients/roundtrips: a protected request takes as many as one without
// protection. And what happens where the connection is cut between the statements that travel together.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { after, before, describe, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import express5 from 'express';
import fastify5 from 'fastify';
import { lookup, run } from 'idempotence';
import {
  effect,
  effects,
  expressApp,
  fastifyApp,
  fresh,
  request as send,
  returning,
  SESSION,
  stage,
  writing,
} from './application.mjs';
import pg from 'pg';
import { ask, drivers, end, prepare, server, vectors } from './harness.mjs';

/** The proxy that counts. */
async function proxy() {
  const program = fileURLToPath(new URL('../../roundtrips/count.py', import.meta.url));
  const child = spawn('python3', [program, '--stdin', '--listen', '0', '--upstream', process.env.PGHOST], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  const [line] = await once(child.stdout, 'data');
  const { port, control } = JSON.parse(line);
  return {
    options: { host: '127.0.0.1', port },
    reset: () => fetch(`${control}/reset`, { method: 'POST' }),
    cut: (when, at) => fetch(`${control}/cut?when=${when}&at=${encodeURIComponent(at)}`, { method: 'POST' }),
    async trips() {
      const counted = await (await fetch(`${control}/trips`)).json();
      return { ...counted, trips: counted.connections.flatMap(({ trips }) => trips) };
    },
    close: () => child.stdin.end(),
  };
}

let counter;
before(async () => {
  await prepare(vectors('http_vectors.json'));
  counter = await proxy();
  const superuser = new pg.Client({ ...server, user: process.env.PGUSER ?? 'postgres' });
  await superuser.connect();
  await superuser.query(readFileSync(new URL('../../roundtrips/writing_begin.sql', import.meta.url), 'utf8'));
  await superuser.end();
});
after(async () => {
  counter.close();
  await stage.close();
});

/** The same work without protection. */
async function unprotected(pool, key) {
  if (typeof pool === 'function') return pool.begin((sql) => effect(sql, key));
  const client = await pool.connect();
  try {
    await client.query('BEGIN');
    await effect(client, key);
    await client.query('COMMIT');
  } finally {
    client.release();
  }
}

const frameworks = {
  Express: (pool) =>
    expressApp(
      express5,
      writing(pool, async (request, response, conn) => {
        await effect(conn, request.headers['idempotency-key']);
        response.status(201).json({ moved: 1 });
      }),
    ),
  'Express, returning': (pool) =>
    expressApp(
      express5,
      returning(pool, async (request, conn) => {
        await effect(conn, request.headers['idempotency-key']);
        return { status: 201, body: { moved: 1 } };
      }),
    ),
  Fastify: (pool) =>
    fastifyApp(fastify5, pool, async (request, reply, conn) => {
      await effect(conn, request.headers['idempotency-key']);
      return reply.code(201).send({ moved: 1 });
    }),
};

for (const [driver, open] of Object.entries(drivers)) {
  describe(driver, () => {
    let pool;
    before(async () => {
      pool = open({ ...counter.options, max: 1 });
      await unprotected(pool, fresh());
    });
    after(() => end(pool));

    async function counted(work) {
      await counter.reset();
      await work();
      return counter.trips();
    }

    test('without protection: 3', async () => {
      const { round_trips: trips, ...rest } = await counted(() => unprotected(pool, fresh()));
      assert.equal(trips, 3, JSON.stringify(rest));
    });

    for (const [framework, listen] of Object.entries(frameworks)) {
      test(`${framework}: 3, and a replay is answered after 1`, async () => {
        const server = await listen(pool);
        const key = fresh();
        try {
          const first = await counted(async () => assert.equal((await send(server, key)).status, 201));
          assert.equal(first.round_trips, 3, JSON.stringify(first.trips));
          const second = await counted(async () => assert.equal((await send(server, key)).replayed, true));
          // The end of the transaction, which nobody waits for, is another one.
          const [begin, commit] = second.trips;
          assert.match(begin.statements.join(), /idem_begin/);
          assert.deepEqual([commit.statements, second.round_trips], [['COMMIT'], 2], JSON.stringify(second.trips));
        } finally {
          server.closeAllConnections();
          server.close();
        }
      });
    }

    test('run: 3', async () => {
      const { round_trips: trips, ...rest } = await counted(() => {
        const key = fresh();
        return run(pool, SESSION, key, null, (conn) => effect(conn, key));
      });
      assert.equal(trips, 3, JSON.stringify(rest));
    });

    for (const [framework, listen] of Object.entries(frameworks)) {
      test(`${framework}: a replay waits for COMMIT if its begin has written`, async () => {
        const writer = open({ ...counter.options, user: 'client_writer', max: 1 });
        const app = await listen(writer);
        const key = fresh();
        try {
          assert.equal((await send(app, key)).status, 201);
          await counter.reset();
          // The COMMIT never reaches the server. So the adapter, which waits for it, begins again.
          await counter.cut('before', 'COMMIT');
          assert.equal((await send(app, key)).replayed, true);
          const { trips } = await counter.trips();
          assert.equal(trips.filter(({ statements }) => /idem_begin/.test(statements)).length, 2, JSON.stringify(trips));
          assert.equal(await effects(key), 1);
        } finally {
          app.closeAllConnections();
          app.close();
          await end(writer);
        }
      });
    }

    describe('a connection that is cut', () => {
      for (const [when, at] of [
        ['before', 'idem_begin'],
        ['after', 'idem_begin'],
        ['before', 'client_effect'],
        ['after', 'client_effect'],
        ['before', 'idem_record'],
        ['after', 'idem_record'],
      ]) {
        test(`${when} ${at}: one effect, one answer`, async () => {
          const key = fresh();
          await counter.reset();
          await counter.cut(when, at);
          let calls = 0;
          let attempts = 0;
          const answer = await run(pool, SESSION, key, null, async (conn) => {
            attempts++;
            await effect(conn, key).catch((error) => {
              // As a library does that wraps the errors of the driver.
              throw new Error('the statement has failed', { cause: error });
            });
            return { calls: ++calls };
          });
          const isCommitted = when === 'after' && at === 'idem_record';
          assert.deepEqual([await effects(key), answer.replayed], [1, isCommitted]);
          assert.equal(calls, at === 'idem_record' && !isCommitted ? 2 : 1);
          assert.equal(attempts, at === 'client_effect' ? 2 : calls);
          assert.equal((await counter.trips()).cut_pending, false);
          assert.deepEqual((await lookup(pool, SESSION, key)).response, answer.response);
        });
      }
    });

    test('a record that fails is no success, although COMMIT would have followed', async () => {
      const key = fresh();
      await assert.rejects(
        run(pool, SESSION, key, null, async (conn) => {
          await effect(conn, key);
          return 'x'.repeat(2_000_000);
        }),
        { code: 'ID009' },
      );
      assert.equal(await effects(key), 0);
      await ask(pool, 'SELECT 1');
    });
  });
}
