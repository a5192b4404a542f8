// Mistakes in the setup: reported when the adapter is constructed, and otherwise with the first request. And who the
// caller is.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import pg from 'pg';
import { Client, complete, lease, run } from 'idempotence';
import * as forExpress from 'idempotence/express';
import * as forFastify from 'idempotence/fastify';
import {
  request as send,
  effect,
  expressApp,
  expresses,
  fastifies,
  fastifyApp,
  fresh,
  serving,
  SESSION,
  stage,
  told,
  writing,
} from './application.mjs';
import { drivers, end, prepare, server, vectors } from './harness.mjs';

before(() => prepare(vectors('http_vectors.json')));
after(() => stage.close());

for (const [driver, open] of Object.entries(drivers)) {
  describe(`construction with ${driver}`, () => {
    let pool;
    before(() => (pool = open()));
    after(() => end(pool));
    const handler = () => ({});
    const adapters = {
      'express idempotent': (...args) => forExpress.idempotent(...args),
      'express idempotency': (database, session, handler, options) =>
        forExpress.idempotency(database, session, options)(handler),
      'fastify idempotent': (...args) => forFastify.idempotent(...args),
    };
    const mistakes = {
      'pool and session swapped': [(make) => make(SESSION, pool, handler), /the first argument is the pool/],
      'no pool': [(make) => make(undefined, SESSION, handler), /expected a pool of pg/],
      'a single client': [(make) => make(new pg.Client(server), SESSION, handler), /a single client/],
      'no session': [(make) => make(pool, '', handler), /name of a session/],
      'an object as the session': [(make) => make(pool, {}, handler), /name of a session/],
      'no handler': [(make) => make(pool, SESSION), /the handler is a function/],
      'the options in place of the handler': [(make) => make(pool, SESSION, {}), /the handler is a function/],
      'an unknown option': [
        (make) => make(pool, SESSION, handler, { requried: true }),
        /there is no option requried; the options are .*required/,
      ],
      'an identity that is no function': [
        (make) => make(pool, SESSION, handler, { identity: 'alice' }),
        /identity is a function/,
      ],
      'methods as a string': [(make) => make(pool, SESSION, handler, { methods: 'POST' }), /methods is an array/],
      'seconds as a string': [(make) => make(pool, SESSION, handler, { wait: '5' }), /wait is a number/],
      'a body of a negative length': [(make) => make(pool, SESSION, handler, { maxBody: -1 }), /maxBody is a number/],
      'a lease without keys': [
        (make) => make(pool, SESSION, handler, { lease: 30, required: false }),
        /every request needs a key/,
      ],
    };
    for (const [adapter, make] of Object.entries(adapters)) {
      for (const [name, [mistake, message]] of Object.entries(mistakes)) {
        test(`${adapter}: ${name}`, () =>
          assert.throws(
            () => mistake(make),
            (error) => error instanceof TypeError && message.test(error.message),
          ));
      }
    }
    for (const [name, call] of Object.entries({
      'run: no work': () => run(pool, SESSION, 'k', null),
      'run: an unknown option': () => run(pool, SESSION, 'k', null, () => 1, { retry: 3 }),
      'run: pool and session swapped': () => run(SESSION, pool, 'k', null, () => 1),
      'lease: no work': () => lease(pool, SESSION, 'k', null),
      'lease: an unknown option': () => lease(pool, SESSION, 'k', null, () => 1, { seconds: 3 }),
      'complete: no handler': () => complete(pool, SESSION),
      'Client: no name': async () => new Client(pool),
      'answer: a handler': async () => forExpress.answer(pool, SESSION, { methods: ['GET'] }),
    }))
      test(name, () => assert.rejects(call, TypeError));
  });
}

const frameworks = {
  ...Object.fromEntries(
    Object.entries(expresses).map(([name, express]) => [
      name,
      (pool, options, calls) =>
        expressApp(
          express,
          writing(pool, (_request, response) => void response.status(201).json({ n: ++calls.n }), options),
        ),
    ]),
  ),
  ...Object.fromEntries(
    Object.entries(fastifies).map(([name, fastify]) => [
      name,
      (pool, options, calls) =>
        fastifyApp(fastify, pool, async (_request, reply) => reply.code(201).send({ n: ++calls.n }), options),
    ]),
  ),
};
for (const [framework, listen] of Object.entries(frameworks)) {
  describe(framework, () => {
    let pool;
    before(() => (pool = drivers.pg()));
    after(() => end(pool));
    const user = (request) => request.headers['x-user'];

    for (const [name, identity] of Object.entries({
      'a string': user,
      'a promise of a string': async (request) => user(request),
      'a number': (request) => user(request).length,
      'a BigInt': (request) => BigInt(user(request).length),
    })) {
      test(`the identity is ${name}: two callers never get each other's answer`, () => {
        const calls = { n: 0 };
        return serving(listen(pool, { identity }, calls), pool, async (post) => {
          const as = async (who) => JSON.parse((await post({ headers: { 'X-User': who } })).text).n;
          assert.deepEqual([await as('alice'), await as('bob'), await as('alice'), await as('bob')], [1, 2, 1, 2]);
        });
      });
    }

    for (const [name, identity] of Object.entries({
      'an object': () => ({ id: 1 }),
      'a Set': () => new Set(['a']),
      undefined: () => undefined,
      null: () => null,
      'an empty string': () => '',
      'a promise of nothing': async () => {},
      true: () => true,
      NaN: () => NaN,
      'a symbol': () => Symbol('a'),
      'a function': () => () => 'a',
    })) {
      test(`the identity is ${name}: 500, and nothing is executed`, () => {
        const calls = { n: 0 };
        return serving(listen(pool, { identity }, calls), pool, async (post, key) => {
          const answer = await post();
          assert.equal(answer.status, 500);
          assert.match(told(answer), /authenticate in front of the adapter/);
          assert.equal(calls.n, 0);
          const [[count]] = await stage.sql(
            `SELECT count(*)::int FROM idempotence.outcomes WHERE request LIKE '%${key}'`,
          );
          assert.equal(count, 0);
        });
      });
    }
  });
}

for (const [framework, express] of Object.entries(expresses)) {
  test(`${framework}: a route with safe methods only is refused`, async () => {
    const pool = drivers.pg();
    const app = express();
    app.get(
      '/',
      forExpress.idempotent(pool, SESSION, (_request, response) => response.json({})),
    );
    app.use((error, _request, response, _next) => response.status(500).json({ told: error.message }));
    const listener = app.listen(0, '127.0.0.1');
    await new Promise((ready) => listener.once('listening', ready));
    const answer = await send(listener, fresh(), { method: 'GET', body: null });
    assert.match(told(answer), /only safe methods/);
    listener.closeAllConnections();
    listener.close();
    await end(pool);
  });

  test(`${framework}: a transaction that the handler has ended is its mistake`, async () => {
    const pool = drivers.pg();
    for (const command of ['COMMIT', 'ROLLBACK']) {
      await serving(
        expressApp(
          express,
          writing(pool, async (request, response, conn) => {
            await effect(conn, request.headers['idempotency-key']);
            await conn.query(command);
            response.json({});
          }),
        ),
        pool,
        async (post) => {
          const answer = await post();
          assert.equal(answer.status, 500);
          assert.match(
            told(answer),
            /the handler must not commit or roll back: the adapter commits after the answer is recorded/,
          );
        },
      );
    }
    await end(pool);
  });
}
