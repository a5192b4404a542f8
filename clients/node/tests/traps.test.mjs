// What is easily done wrong, and is caught here.

import assert from 'node:assert/strict';
import { once as happens } from 'node:events';
import { Readable } from 'node:stream';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import express5 from 'express';
import express4 from 'express4';
import fastify5 from 'fastify';
import fastify4 from 'fastify4';
import pg from 'pg';
import { check, Client, lease, lookup, run } from 'idempotence';
import * as forExpress from 'idempotence/express';
import * as forFastify from 'idempotence/fastify';
import { ask, drivers, end, prepare, server, Stage, vectors, wire } from './harness.mjs';

const stage = new Stage('');
let keys = 0;
const fresh = () => `${process.pid}-${Date.now()}-${keys++}`;
const effect = (conn, key) => ask(conn, `INSERT INTO client_effect VALUES ('${key}', 1)`);
const effects = async (key) => (await stage.sql(`SELECT count(*)::int FROM client_effect WHERE run = '${key}'`))[0][0];

before(() => prepare(vectors('http_vectors.json')));
after(() => stage.close());

for (const [driver, open] of Object.entries(drivers)) {
  describe(driver, () => {
    let pool;
    before(() => (pool = open()));
    after(() => end(pool));

    test('a connection is of no use after its transaction', async () => {
      let kept;
      await run(pool, 'http-clients', fresh(), null, (conn) => void (kept = conn));
      const late = typeof kept === 'function' ? kept.unsafe('SELECT 1') : kept.query('SELECT 1'); // throws nothing
      await assert.rejects(late, (error) => /the transaction of this request has ended/.test(error.message));
    });

    test('what is no key names no request', async () => {
      for (const key of [undefined, null, true, 1.5, 2 ** 53, {}]) {
        await assert.rejects(
          async () => run(pool, 'http-clients', key, null, () => null),
          /^TypeError: the key of a request is/,
        );
      }
    });

    test('work that goes on after an error of its statement is told of that error, and nothing is kept', async () => {
      const key = fresh();
      const work = async (conn) => {
        await effect(conn, key);
        await ask(conn, 'SELECT 1/0').catch(() => {});
        return { moved: 1 };
      };
      await assert.rejects(
        run(pool, 'http-clients', key, null, work),
        (error) => error.code === '25P02' && error.cause.code === '22012',
      );
      assert.equal(await effects(key), 0);
      assert.equal((await lookup(pool, 'http-clients', key)).status, 'unknown');
    });

    for (const claim of [false, true]) {
      test(`an answer to COMMIT that is lost is asked for again${claim ? ', with a claim' : ''}`, async () => {
        const way = await wire('COMMIT');
        const wired = drivers[driver](way.options);
        const key = fresh();
        let calls = 0;
        const answer = await run(
          wired,
          'http-clients',
          key,
          null,
          async (conn) => {
            calls++;
            await effect(conn, key);
            return { calls };
          },
          { claim },
        );
        assert.ok(way.cut());
        assert.deepEqual([answer.response, answer.replayed, await effects(key)], [{ calls: 1 }, true, 1]);
        await end(wired);
        way.close();
      });
    }

    test('a client whose send was given up in doubt gives the number up before its next one', async () => {
      const way = await wire('COMMIT');
      const wired = drivers[driver](way.options);
      const key = fresh();
      const client = new Client(wired, key, { window: 1 });
      const work = async (conn) => void (await effect(conn, key));
      await assert.rejects(client.send(1, work, { deadline: 0 }));
      const answer = await client.send(2, work);
      assert.deepEqual([answer.replayed, await effects(key)], [false, 2]);
      const numbers =
        await stage.sql(`SELECT request FROM idempotence.outcomes JOIN idempotence.sessions USING (session)
        WHERE client = '${key}'`);
      assert.deepEqual(numbers, [['2']]);
      await client.close();
      await end(wired);
      way.close();
    });

    test('a heartbeat outlasts the loss of its connection', async () => {
      const key = fresh();
      const own = open(driver === 'pg' ? { application_name: key } : { connection: { application_name: key } });
      const answer = await lease(
        own,
        'http-clients',
        key,
        null,
        async (held) => {
          await sleep(100);
          const ended = await stage.sql(
            `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '${key}'`,
          );
          assert.equal(ended.length, 1);
          await sleep(900);
          await held.record({ done: 1 });
        },
        { lease: 0.6 },
      );
      assert.equal(answer.status, 'succeeded');
      await end(own);
    });
  });
}

test('with a claim, and a driver that sends ahead, there is one round trip', async () => {
  const way = await wire('nothing');
  const pool = drivers.pg({ ...way.options, pipeline: true });
  await ask(pool, 'SELECT 1');
  way.trips = 0;
  const key = fresh();
  const answer = await run(
    pool,
    'http-clients',
    key,
    null,
    (conn) => {
      effect(conn, key);
      return { moved: 1 };
    },
    { claim: true },
  );
  assert.deepEqual([answer.response, await effects(key), way.trips], [{ moved: 1 }, 1, 1]);
  // The first error is the one that is thrown, and is waited for.
  await assert.rejects(
    run(
      pool,
      'http-clients',
      fresh(),
      null,
      (conn) => {
        ask(conn, 'SELECT 1/0').catch(() => {});
        return 1;
      },
      { claim: true },
    ),
    (error) => error.code === '25P02' && error.cause.code === '22012',
  );
  await end(pool);
  way.close();
});

test('a pool to which nobody listens is told of', async () => {
  const pool = new pg.Pool(server);
  assert.match((await check(pool, 'http-clients'))[0], /^pool: /);
  await pool.end();
});

/** An application with one route, for a handler in the framework's own words. */
const frameworks = {
  'express 5': (pool, handlers, options) => onExpress(express5, pool, handlers.express, options),
  'express 4': (pool, handlers, options) => onExpress(express4, pool, handlers.express, options),
  'fastify 5': (pool, handlers, options) => onFastify(fastify5, pool, handlers.fastify, options),
  'fastify 4': (pool, handlers, options) => onFastify(fastify4, pool, handlers.fastify, options),
};

async function onExpress(express, pool, handler, options) {
  const app = express();
  app.use(express.json());
  app.post('/', forExpress.idempotent(pool, 'http-clients', handler, options));
  app.use((error, _request, response, _next) => response.status(error.status ?? 500).json({ told: error.message }));
  const server = app.listen(0, '127.0.0.1');
  if (!server.listening) await happens(server, 'listening');
  return server;
}

async function onFastify(fastify, pool, handler, options) {
  const app = fastify();
  app.addContentTypeParser('*', (_request, payload, done) => done(null, undefined, payload.resume()));
  app.post('/', forFastify.idempotent(pool, 'http-clients', handler, options));
  app.setErrorHandler((error, _request, reply) => reply.code(error.statusCode ?? 500).send({ told: error.message }));
  await app.listen({ port: 0, host: '127.0.0.1' });
  return app.server;
}

for (const [framework, listen] of Object.entries(frameworks)) {
  describe(framework, () => {
    let pool;
    before(() => (pool = drivers.pg()));
    after(() => end(pool));

    async function serving(handlers, use, options, through = pool) {
      const server = await listen(through, handlers, options);
      const key = fresh();
      const post = (body = { a: 1 }, headers = {}) =>
        fetch(`http://127.0.0.1:${server.address().port}/`, {
          method: 'POST',
          headers: { 'idempotency-key': key, 'content-type': 'application/json', ...headers },
          body: typeof body === 'string' ? body : JSON.stringify(body),
        });
      try {
        await use(post, key);
      } finally {
        server.closeAllConnections();
        server.close();
      }
    }

    test('a handler that answers before its work is held back', () => {
      const work = async (request, conn, answer) => {
        answer();
        await sleep(100);
        await effect(conn, request.headers['idempotency-key']);
      };
      return serving(
        {
          express: (request, response, conn) => work(request, conn, () => response.status(201).json({ moved: 1 })),
          fastify: (request, reply, conn) => work(request, conn, () => reply.code(201).send({ moved: 1 })),
        },
        async (post, key) => {
          const answer = await post();
          assert.deepEqual([answer.status, await answer.json(), await effects(key)], [201, { moved: 1 }, 1]);
        },
      );
    });

    test('a handler that answers, and then fails, has not answered', () => {
      const work = async (request, conn, answer) => {
        answer();
        await effect(conn, request.headers['idempotency-key']);
        throw Object.assign(new Error('no'), { status: 403, statusCode: 403 });
      };
      return serving(
        {
          express: (request, response, conn) =>
            work(request, conn, () => response.status(201).set('X-A', '1').json({ moved: 1 })),
          fastify: (request, reply, conn) =>
            work(request, conn, () => reply.code(201).header('X-A', '1').send({ moved: 1 })),
        },
        async (post, key) => {
          for (const replayed of [null, 'true']) {
            const answer = await post();
            assert.deepEqual(
              [answer.status, answer.headers.get('x-a'), await answer.json()],
              [403, null, { told: 'no' }],
            );
            assert.equal(answer.headers.get('idempotent-replayed'), replayed);
          }
          assert.equal(await effects(key), 0);
        },
      );
    });

    test('a refusal after an error that the handler has caught is recorded, and an acceptance is not', () => {
      let status;
      const work = async (request, conn) => {
        await effect(conn, request.headers['idempotency-key']);
        await ask(conn, "INSERT INTO client_effect VALUES ('x', 5000)").catch(() => {});
      };
      return serving(
        {
          express: async (request, response, conn) => {
            await work(request, conn);
            response.status(status).json({});
          },
          fastify: async (request, reply, conn) => {
            await work(request, conn);
            return reply.code(status).send({});
          },
        },
        async (post, key) => {
          status = 201;
          assert.equal((await post()).status, 500);
          assert.equal(await effects(key), 0);
          status = 422;
          assert.equal((await post()).status, 422);
          assert.equal((await post()).headers.get('idempotent-replayed'), 'true');
          assert.equal(await effects(key), 0);
        },
      );
    });

    test('an answer that is piped is recorded and replayed', () => {
      const piped = () => Readable.from([Buffer.from([0, 255]), Buffer.from('end')]);
      return serving(
        {
          express: (_request, response) => void piped().pipe(response),
          fastify: (_request, reply) => reply.type('application/octet-stream').send(piped()),
        },
        async (post) => {
          const bytes = async () => Buffer.from(await (await post()).arrayBuffer()).toString('hex');
          assert.deepEqual([await bytes(), await bytes()], ['00ff656e64', '00ff656e64']);
        },
      );
    });

    test('an answer to COMMIT that is lost is asked for again', async () => {
      const way = await wire('COMMIT');
      const wired = drivers.pg(way.options);
      await serving(
        {
          express: async (request, response, conn) => {
            await effect(conn, request.headers['idempotency-key']);
            response.status(201).json({ moved: 1 });
          },
          fastify: async (request, reply, conn) => {
            await effect(conn, request.headers['idempotency-key']);
            return reply.code(201).send({ moved: 1 });
          },
        },
        async (post, key) => {
          const answer = await post();
          assert.ok(way.cut());
          assert.deepEqual(
            [answer.status, await answer.json(), answer.headers.get('idempotent-replayed')],
            [201, { moved: 1 }, 'true'],
          );
          assert.equal(await effects(key), 1);
        },
        {},
        wired,
      );
      await end(wired);
      way.close();
    });

    test('a body that nobody has read is refused', () =>
      serving(
        {
          express: (_request, response) => response.json({}),
          fastify: (_request, reply) => reply.send({}),
        },
        async (post) => {
          for (const type of ['text/csv', 'multipart/form-data; boundary=x']) {
            const answer = await post('a,b', { 'content-type': type });
            assert.deepEqual([answer.status, (await answer.json()).type.split('#')[1]], [415, 'body-unsupported']);
          }
        },
      ));

    test('who holds a lease no more has not answered', () => {
      const work = async (held) => {
        const { key } = held.request;
        await stage.sql(`SELECT idem_release('http-clients', '${key}', token => ${held.token})`);
      };
      return serving(
        {
          express: async (_request, response, held) => {
            await work(held);
            response.json({});
          },
          fastify: async (_request, reply, held) => {
            await work(held);
            return reply.send({});
          },
        },
        async (post) => {
          const answer = await post();
          assert.deepEqual([answer.status, (await answer.json()).type.split('#')[1]], [409, 'superseded']);
        },
        { lease: 30 },
      );
    });

    test('a caller that has gone leaves no connection open', async () => {
      await serving(
        {
          express: () => {},
          fastify: () => {},
        },
        async (post) => {
          const gone = post().catch(() => {});
          for (let n = 0; pool.totalCount - pool.idleCount === 0 && n < 100; n++) await sleep(10);
          assert.equal(pool.totalCount - pool.idleCount, 1);
          void gone;
        },
      );
      for (let n = 0; pool.idleCount < pool.totalCount && n < 100; n++) await sleep(10);
      assert.equal(pool.idleCount, pool.totalCount);
    });
  });
}

for (const [framework, fastify] of Object.entries({ fastify5, fastify4 })) {
  test(`${framework}: an answer past the framework fails in the first request`, async () => {
    const pool = drivers.pg();
    const server = await onFastify(fastify, pool, (_request, reply) => {
      reply.raw.end('moved');
      return reply;
    });
    const answer = await fetch(`http://127.0.0.1:${server.address().port}/`, {
      method: 'POST',
      headers: { 'idempotency-key': fresh() },
    });
    assert.equal(answer.status, 500);
    assert.match((await answer.json()).told, /before COMMIT/);
    server.closeAllConnections();
    server.close();
    await end(pool);
  });
}

test('those who ask again while the first is at work wait for nothing, and hold no unrelated query up', async (t) => {
  // Whoever waits for the first waits for ever: it ends after all the others have their answers.
  const pool = drivers.pg({ max: 4, options: '-c idempotence.wait=1h' });
  let begin, release;
  const begun = new Promise((resolve) => (begin = resolve));
  const released = new Promise((resolve) => (release = resolve));
  const server = await onExpress(express5, pool, async (_request, response) => {
    begin();
    await released;
    response.status(201).json({});
  });
  t.after(() => {
    release();
    server.closeAllConnections();
    server.close();
    return end(pool);
  });
  const key = fresh();
  const signal = AbortSignal.timeout(60_000);
  const post = () =>
    fetch(`http://127.0.0.1:${server.address().port}/`, {
      method: 'POST',
      headers: { 'idempotency-key': key },
      signal,
    });
  const first = post();
  await begun;
  const duplicates = Array.from({ length: 40 }, post);
  await ask(pool, 'SELECT 1');
  assert.deepEqual(new Set((await Promise.all(duplicates)).map(({ status }) => status)), new Set([409]));
  release();
  assert.equal((await first).status, 201);
});
