// The connection of a request: who may use it and until when, which errors repeat a handler, and how long a handler may
// hold it.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import net from 'node:net';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { run } from 'idempotence';
import {
  effect,
  effects,
  expressApp,
  expresses,
  fastifies,
  fastifyApp,
  fresh,
  problemOf,
  request as send,
  returning,
  serving,
  SESSION,
  stage,
  statusOf,
  told,
  writing,
} from './application.mjs';
import { ask, drivers, end, idle, prepare, vectors } from './harness.mjs';

before(() => prepare(vectors('http_vectors.json')));
after(() => stage.close());

/** A handler of `work(key, conn)` and what it returns, for each framework. */
const frameworks = {
  ...Object.fromEntries(
    Object.entries(expresses).flatMap(([name, express]) => [
      [
        name,
        (pool, work, options) =>
          expressApp(
            express,
            writing(
              pool,
              async (request, response, conn) =>
                void response.status(201).json(await work(request.headers['idempotency-key'], conn)),
              options,
            ),
          ),
      ],
      [
        `${name}, returning`,
        (pool, work, options) =>
          expressApp(
            express,
            returning(
              pool,
              async (request, conn) => ({ status: 201, body: await work(request.headers['idempotency-key'], conn) }),
              options,
            ),
          ),
      ],
    ]),
  ),
  ...Object.fromEntries(
    Object.entries(fastifies).map(([name, fastify]) => [
      name,
      (pool, work, options) =>
        fastifyApp(
          fastify,
          pool,
          async (request, reply, conn) => reply.code(201).send(await work(request.headers['idempotency-key'], conn)),
          options,
        ),
    ]),
  ),
};
const backend = async (conn) => (await ask(conn, 'SELECT pg_backend_pid() AS pid'))[0].pid;
const terminate = (pid) => stage.sql(`SELECT pg_terminate_backend(${pid}, 5000)`);

/** Errors that look like those of a lost connection, and are not of this request's connection. */
const foreign = {
  async 'ECONNRESET of a payment processor'() {
    const processor = net
      .createServer((socket) => socket.resetAndDestroy?.() ?? socket.destroy())
      .listen(0, '127.0.0.1');
    await once(processor, 'listening');
    const socket = net.connect(processor.address().port, '127.0.0.1');
    socket.on('connect', () => socket.write('charge'));
    await once(socket, 'close').finally(() => processor.close());
    throw Object.assign(new Error('socket hang up'), { code: 'ECONNRESET' });
  },
  'ENOENT of a file': () => readFile('/nowhere'),
  async EBADCSRFTOKEN() {
    throw Object.assign(new Error('invalid csrf token'), { code: 'EBADCSRFTOKEN', status: 403, statusCode: 403 });
  },
  async 'a timeout of another pool'() {
    const other = drivers.pg({ max: 1, connectionTimeoutMillis: 50 });
    const held = await other.connect();
    try {
      await other.query('SELECT 1');
    } finally {
      held.release();
      await other.end();
    }
  },
};

for (const [driver, open] of Object.entries(drivers)) {
  for (const [framework, listen] of Object.entries(frameworks)) {
    // Each framework with one driver, and each driver with two frameworks.
    if (!process.env.IDEM_LONG && (driver === 'pg') !== !/4$|4,/.test(framework)) continue;
    describe(`${framework}, ${driver}`, () => {
      let pool;
      before(() => (pool = open()));
      after(() => end(pool));
      const serves = (work, use, options) => serving(listen(pool, work, options), pool, use);

      for (const [name, raise] of Object.entries(foreign)) {
        test(`${name}: the handler is called once, and its error is the application's`, () => {
          let calls = 0;
          return serves(
            async (key, conn) => {
              calls++;
              await effect(conn, key);
              await raise();
            },
            async (post, key) => {
              const answer = await post();
              assert.equal(answer.status, name === 'EBADCSRFTOKEN' ? 403 : 500);
              assert.ok(told(answer));
              assert.deepEqual([calls, await effects(key)], [1, 0]);
            },
          );
        });
      }

      test('a handler that throws an error of its own because its connection was lost is called again', () => {
        let calls = 0;
        return serves(
          async (key, conn) => {
            calls++;
            await effect(conn, key);
            if (calls === 1) {
              await terminate(await backend(conn));
              await sleep(50);
              throw new Error('the ORM has wrapped it');
            }
            return { calls };
          },
          async (post, key) => {
            assert.equal((await post()).text, '{"calls":2}');
            assert.equal(await effects(key), 1);
          },
        );
      });

      test('an error of the connection from which a savepoint has recovered repeats nothing', () => {
        let calls = 0;
        return serves(
          async (key, conn) => {
            calls++;
            const provoke = (on) => ask(on, "DO $$ BEGIN RAISE SQLSTATE '40001'; END $$");
            if (driver === 'postgres') {
              await conn.savepoint((inner) => provoke(inner)).catch(() => {});
            } else {
              await conn.query('SAVEPOINT mine');
              await provoke(conn).catch(() => {});
              await conn.query('ROLLBACK TO SAVEPOINT mine');
            }
            await effect(conn, key);
            throw new Error('for a reason of its own');
          },
          async (post, key) => {
            assert.equal((await post()).status, 500);
            assert.deepEqual([calls, await effects(key)], [1, 0]);
          },
        );
      });

      test('a statement after the answer is refused, and writes into no other transaction', () => {
        let late;
        return serves(
          async (key, conn) => {
            late = sleep(100).then(() => effect(conn, key));
            late.catch(() => {});
            return {};
          },
          async (post, key) => {
            assert.equal((await post()).status, 201);
            await assert.rejects(late, /the transaction of this request has ended; finish all work/);
            assert.equal(await effects(key), 0);
            await ask(pool, 'SELECT 1');
            assert.equal(await effects(key), 0);
          },
        );
      });

      test('a handler that exceeds its limit: 503, the connection is closed, and nothing is kept', () => {
        let pid;
        return serves(
          async (key, conn) => {
            await effect(conn, key);
            pid = await backend(conn);
            return new Promise(() => {});
          },
          async (post, key) => {
            const answer = await post({ timeout: 5000 });
            assert.deepEqual(
              [answer.status, problemOf(answer), answer.headers['retry-after']],
              [503, 'unavailable', '1'],
            );
            await gone(pid);
            assert.deepEqual([await effects(key), await statusOf(key)], [0, 'unknown']);
          },
          { handlerTimeout: 0.3 },
        );
      });

      test('a statement that exceeds the limit of its handler is cancelled', () => {
        let pid;
        return serves(
          async (key, conn) => {
            pid = await backend(conn);
            await ask(conn, 'SELECT pg_sleep(600)');
          },
          async (post) => {
            assert.equal((await post({ timeout: 5000 })).status, 503);
            await gone(pid);
          },
          { handlerTimeout: 0.3 },
        );
      });

      test('four callers that have gone leave the pool as it was', () => {
        const callers = new Map(Array.from({ length: 4 }, () => [fresh(), new AbortController()]));
        return serving(
          listen(pool, async (key, conn) => {
            await effect(conn, key);
            callers.get(key)?.abort();
            await sleep(100);
            return {};
          }),
          pool,
          async (post, _key, server) => {
            await Promise.all(
              [...callers].map(([key, { signal }]) =>
                assert.rejects(send(server, key, { signal }), { name: 'AbortError' }),
              ),
            );
            assert.equal((await post()).status, 201);
            // What a handler has done without its caller is kept.
            for (const key of callers.keys()) {
              for (let n = 0; (await statusOf(key)) !== 'succeeded' && n < 500; n++) await sleep(20);
              assert.equal(await effects(key), 1);
            }
          },
        );
      });
    });
  }

  describe(`run with ${driver}`, () => {
    let pool;
    before(() => (pool = open()));
    after(() => end(pool));

    test('a statement without await belongs to the transaction', async () => {
      const key = fresh();
      await run(pool, SESSION, key, null, (conn) => void effect(conn, key));
      assert.equal(await effects(key), 1);
    });

    test('a query that is made in time and sent late is refused', async () => {
      const key = fresh();
      let query;
      await run(pool, SESSION, key, null, (conn) => {
        query =
          driver === 'postgres' ? conn`INSERT INTO client_effect VALUES (${key}, 1)` : () => conn.query('SELECT 1');
      });
      await assert.rejects(async () => (typeof query === 'function' ? query() : query), /has ended/);
      assert.equal(await effects(key), 0);
    });

    test('the work cannot give the connection back', async () => {
      await assert.rejects(
        run(pool, SESSION, fresh(), null, (conn) => conn.release()),
        /belongs to the transaction/,
      );
      await ask(pool, 'SELECT 1');
    });

    for (const command of ['COMMIT', 'ROLLBACK', 'COMMIT AND CHAIN', 'ROLLBACK; BEGIN']) {
      test(`the work cannot end the transaction by ${command}, nor write into another one`, async () => {
        const key = fresh();
        const one = open({ max: 1 });
        await assert.rejects(
          run(one, SESSION, key, null, async (conn) => {
            await effect(conn, key);
            await ask(conn, command);
            return 1;
          }),
          /must not commit or roll back/,
        );
        await ask(one, 'SELECT 1');
        assert.equal(await effects(key), 0);
        await end(one);
      });
    }
  });
}

/** Waits until the backend has ended; behind a pooler, which keeps it, until it has no transaction. */
async function gone(pid) {
  const there = `SELECT count(*)::int FROM pg_stat_activity WHERE pid = ${pid}`;
  for (let n = 0; n < 100; n++) {
    const [[busy]] = await stage.sql(there + (process.env.IDEM_POOLER ? ' AND xact_start IS NOT NULL' : ''));
    if (busy === 0) return;
    await sleep(20);
  }
  assert.fail(`backend ${pid} is still there`);
}

test('postgres.js: savepoints, fragments, files and names in the case of the application', async () => {
  const pool = drivers.postgres({ transform: { ...(await import('postgres')).default.camel, undefined: null } });
  const key = fresh();
  const answer = await run(pool, SESSION, key, null, async (sql) => {
    const [row] = await sql`SELECT 1 AS some_number ${sql`, 2 AS another_one`}`;
    await assert.rejects(
      sql.savepoint(async (inner) => {
        await inner`INSERT INTO client_effect VALUES (${key}, 1)`;
        await inner`SELECT 1/0`.catch(() => {});
      }),
      { code: '22012' },
    );
    const both = await sql.savepoint((inner) => [inner`SELECT 1 AS a`, inner`SELECT 2 AS a`]);
    await sql`INSERT INTO client_effect ${sql({ run: key, amount: 2 })}`;
    return [row, both.map(([{ a }]) => a)];
  });
  assert.deepEqual(answer.response, [{ someNumber: 1, anotherOne: 2 }, [1, 2]]);
  assert.deepEqual(await stage.sql(`SELECT amount FROM client_effect WHERE run = '${key}'`), [[2]]);
  assert.equal((await run(pool, SESSION, key, null, () => 0)).replayed, true);
  await end(pool);
});

test('pg: callbacks are called, also with a refusal', async () => {
  const pool = drivers.pg();
  const key = fresh();
  let kept;
  await run(
    pool,
    SESSION,
    key,
    null,
    (conn) =>
      new Promise((done, failed) => {
        kept = conn;
        conn.query('INSERT INTO client_effect VALUES ($1, 1)', [key], (error) => (error ? failed(error) : done()));
      }),
  );
  const refusal = await new Promise((done) => kept.query('SELECT 1', done));
  assert.match(refusal.message, /has ended/);
  assert.equal(await effects(key), 1);
  kept.removeListener('error', () => {});
  await end(pool);
});
