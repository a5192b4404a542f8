// Fastify: every way in which a handler answers, hooks and plugins in front, and what would bypass Fastify.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createRequire } from 'node:module';
import { Readable } from 'node:stream';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { gunzipSync } from 'node:zlib';
import createError from 'http-errors';
import { idempotent } from 'idempotence/fastify';
import {
  request as send,
  effect,
  effects,
  fastifies,
  fastifyApp,
  fresh,
  serving,
  SESSION,
  stage,
  statusOf,
  told,
} from './application.mjs';
import { drivers, end, idle, prepare, slow, vectors } from './harness.mjs';

const load = createRequire(import.meta.url);
before(() => prepare(vectors('http_vectors.json')));
after(() => stage.close());

const failing = () =>
  Readable.from(
    (async function* () {
      yield 'a';
      throw new Error('the disk is gone');
    })(),
  );

for (const [framework, fastify] of Object.entries(fastifies)) {
  describe(framework, () => {
    // A rollback arrives late at the server: no answer may overtake it.
    let way;
    let pool;
    before(async () => {
      way = await slow('ROLLBACK');
      pool = drivers.pg(way.options);
    });
    after(async () => {
      await end(pool);
      way.close();
    });
    const serves = (handler, use, app, options) => serving(fastifyApp(fastify, pool, handler, options, app), pool, use);

    const ways = {
      'an object': [() => ({ a: 1 }), 200, 'application/json; charset=utf-8', '{"a":1}'],
      'a string': [() => 'text', 200, 'text/plain; charset=utf-8', 'text'],
      bytes: [() => Buffer.from('ab'), 200, 'application/octet-stream', 'ab'],
      null: [() => null, 200, 'application/json; charset=utf-8', 'null'],
      undefined: [() => undefined, 200, undefined, ''],
      'reply.send': [(reply) => reply.code(201).send({ a: 1 }), 201, 'application/json; charset=utf-8', '{"a":1}'],
      'a stream': [
        (reply) =>
          reply
            .code(201)
            .type('text/plain')
            .send(Readable.from(['a', 'b'])),
        201,
        'text/plain',
        'ab',
      ],
      'a web stream': [
        (reply) => reply.code(201).type('text/plain').send(new Response('web').body),
        201,
        'text/plain',
        'web',
      ],
      'a Response': [
        () => new Response('web', { status: 201, headers: { 'content-type': 'text/a', location: '/r/1' } }),
        201,
        'text/a',
        'web',
      ],
      'a Response without a body': [() => new Response(null, { status: 202 }), 202, undefined, ''],
      'a redirection': [(reply) => reply.code(303).header('location', '/r/1').send(), 303, undefined, ''],
      204: [(reply) => reply.code(204).send(), 204, undefined, ''],
      'its own type': [(reply) => reply.type('application/x-own').send('own'), 200, 'application/x-own', 'own'],
    };
    for (const [name, [answer, status, type, body]] of Object.entries(ways)) {
      test(`${name}: answered, recorded and replayed`, () =>
        serves(
          async (request, reply, conn) => {
            await effect(conn, request.headers['idempotency-key']);
            return answer(reply);
          },
          async (post, key) => {
            for (const replayed of [false, true]) {
              const got = await post({ timeout: 5000 });
              assert.deepEqual([got.status, got.text, got.replayed], [status, body, replayed]);
              assert.equal(
                got.headers['content-type']?.replace(/^text\/plain; charset=utf-8$/, 'text/plain') ?? undefined,
                type?.replace(/^text\/plain; charset=utf-8$/, 'text/plain'),
              );
              assert.equal(got.headers.location, answer.toString().includes('/r/1') ? '/r/1' : undefined);
            }
            assert.equal(await effects(key), 1);
          },
        ));
    }

    test('later, from a callback', () =>
      serves(
        (_request, reply) => void setTimeout(() => reply.code(201).send({ a: 1 }), 30),
        async (post) => assert.equal((await post()).status, 201),
      ));

    test('several values of a header, and a cookie that only the first answer has', () =>
      serves(
        async (_request, reply) => {
          reply
            .header('link', ['</a>; rel="next"', '</b>; rel="prev"'])
            .header('set-cookie', 'a=1')
            .header('set-cookie', 'b=2');
          return {};
        },
        async (post) => {
          const [first, second] = [await post(), await post()];
          assert.deepEqual([first.headers['set-cookie'], second.headers['set-cookie']], [['a=1', 'b=2'], undefined]);
          assert.equal(first.headers.link, '</a>; rel="next", </b>; rel="prev"');
          assert.equal(second.headers.link, first.headers.link);
        },
      ));

    describe('an error has the same effect however it is raised', () => {
      for (const [name, raise] of Object.entries({
        thrown: (error) => Promise.reject(error),
        returned: (error) => error,
        sent: (error, reply) => reply.send(error),
        'an object that is no Error': (error) =>
          Promise.reject({ statusCode: error.statusCode, message: error.message }),
      })) {
        test(name, () =>
          serves(
            async (request, reply, conn) => {
              await effect(conn, request.headers['idempotency-key']);
              reply.header('x-a', '1');
              return raise(createError(402, 'insufficient funds'), reply);
            },
            async (post, key) => {
              for (const replayed of [false, true]) {
                const answer = await post();
                assert.deepEqual(
                  [answer.status, told(answer), answer.headers['x-a'], answer.replayed],
                  [
                    402,
                    'insufficient funds',
                    name === 'thrown' || name.startsWith('an') ? undefined : '1',
                    replayed && true,
                  ].map((value, n) => (n === 2 && replayed ? undefined : value)),
                );
              }
              assert.equal(await effects(key), 0);
            },
          ),
        );
      }
    });

    describe('nothing is kept of, and no connection is held by,', () => {
      const cases = {
        'a stream that fails': [(_request, reply) => reply.code(201).type('text/plain').send(failing()), 500],
        'a stream of events': [
          (_request, reply) => reply.type('text/event-stream').send(Readable.from(['data: 1\n\n'])),
          500,
        ],
        'an object with a type of its own': [
          (_request, reply) => reply.type('application/x-own').send({ own: 1 }),
          500,
        ],
        'reply.hijack': [
          (_request, reply) => {
            reply.hijack();
            reply.raw.end('raw');
          },
          500,
        ],
        'reply.raw.end': [
          (_request, reply) => {
            reply.raw.end('raw');
            return reply;
          },
          500,
        ],
        'reply.raw.writeHead': [(_request, reply) => reply.raw.writeHead(201).end('raw'), 500],
        'reply.callNotFound': [
          (_request, reply) => {
            reply.callNotFound();
            return reply;
          },
          500,
        ],
        'reply.trailer': [(_request, reply) => reply.trailer('x-sum', async () => '1').send({ a: 1 }), 500],
        'the header Trailer': [(_request, reply) => reply.header('Trailer', 'x-sum').send({ a: 1 }), 500],
        'an answer that its schema refuses': [
          (_request, reply) => reply.code(201).send({ n: 'no number' }),
          500,
          {
            schema: {
              response: { 201: { type: 'object', properties: { n: { type: 'integer' } }, required: ['n', 'm'] } },
            },
          },
        ],
        'a hook that fails': [
          (_request, reply) => reply.code(201).send({}),
          500,
          {
            use: (app) =>
              app.addHook('onSend', async (_request, reply, payload) => {
                if (reply.statusCode === 201) throw new Error('a hook has failed');
                return payload;
              }),
          },
        ],
        'a hook that always fails': [
          (_request, reply) => reply.code(201).send({}),
          500,
          {
            use: (app) =>
              app.addHook('onSend', async () => {
                throw new Error('a hook has failed');
              }),
          },
        ],
      };
      for (const [name, [answer, status, app]] of Object.entries(cases)) {
        test(name, () =>
          serves(
            async (request, reply, conn) => {
              await effect(conn, request.headers['idempotency-key']);
              return answer(request, reply);
            },
            async (post, key) => {
              for (let n = 0; n < 5; n++) assert.equal((await post({ timeout: 5000 })).status, status);
              assert.deepEqual([await effects(key), await statusOf(key)], [0, 'unknown']);
            },
            app,
          ),
        );
      }
    });

    test('hooks that change the payload are applied once, and the replay has the same bytes', () =>
      serves(
        async () => ({ a: 1 }),
        async (post) => {
          const [first, second] = [await post(), await post()];
          assert.deepEqual([first.text, second.text, second.replayed], ['{"data":{"a":1}}', '{"data":{"a":1}}', true]);
          assert.deepEqual([first.headers['x-hook'], second.headers['x-hook']], ['1', '1']);
        },
        {
          use: (app) =>
            app.addHook('onSend', async (_request, reply, payload) => {
              reply.header('x-hook', '1');
              return `{"data":${payload}}`;
            }),
        },
      ));

    test('what a handler has answered is kept though its caller has gone', async () => {
      const caller = new AbortController();
      await serves(
        async (request, reply, conn) => {
          await effect(conn, request.headers['idempotency-key']);
          caller.abort();
          if (!reply.raw.destroyed) await once(reply.raw, 'close');
          return reply.code(201).send({ paid: true });
        },
        async (post, key) => {
          await assert.rejects(post({ signal: caller.signal }), { name: 'AbortError' });
          let answer;
          while ((answer = await post()).status === 409) await sleep(50);
          assert.deepEqual([answer.status, answer.replayed, await effects(key)], [201, true, 1]);
        },
      );
    });

    // Fastify 5 is for Node 20 and later. On Node 18 all of it works but this.
    const old = framework === 'fastify 5' && Number(process.versions.node.split('.')[0]) < 20;
    test('with app.inject, as in tests of an application', { skip: old }, async () => {
      const app = fastify();
      app.post(
        '/',
        idempotent(pool, SESSION, async (request, _reply, conn) => {
          await effect(conn, request.headers['idempotency-key']);
          return { a: 1 };
        }),
      );
      const key = fresh();
      for (const replayed of [undefined, 'true']) {
        const answer = await app.inject({
          method: 'POST',
          url: '/',
          headers: { 'idempotency-key': key },
          payload: { b: 1 },
        });
        assert.deepEqual(
          [answer.statusCode, answer.body, answer.headers['idempotent-replayed']],
          [200, '{"a":1}', replayed],
        );
      }
      const other = await app.inject({
        method: 'POST',
        url: '/',
        headers: { 'idempotency-key': key },
        payload: { b: 2 },
      });
      assert.deepEqual([other.statusCode, await effects(key)], [422, 1]);
      await app.close();
    });

    // The plugins are for Fastify 5.
    if (framework === 'fastify 5') {
      test('@fastify/session saves the session', () =>
        serves(
          async (request) => {
            request.session.user = 'alice';
            return { a: 1 };
          },
          async (post) => {
            const first = await post();
            assert.match(String(first.headers['set-cookie']), /^sessionId=/);
            assert.equal(
              (await post({ headers: { Cookie: String(first.headers['set-cookie']).split(';')[0] } })).replayed,
              true,
            );
          },
          {
            use: async (app) => {
              await app.register(load('@fastify/cookie'));
              await app.register(load('@fastify/session'), { secret: 'x'.repeat(40), cookie: { secure: false } });
            },
          },
        ));

      test('@fastify/compress compresses the first answer and the replay, each as its caller wants', () =>
        serves(
          async () => ({ fill: 'x'.repeat(2000) }),
          async (post) => {
            for (const replayed of [false, true]) {
              const answer = await post({ headers: { 'Accept-Encoding': 'gzip' } });
              assert.deepEqual([answer.headers['content-encoding'], answer.replayed], ['gzip', replayed]);
              assert.match(String(gunzipSync(answer.bytes)), /xxx/);
            }
            const plain = await post();
            assert.deepEqual([plain.headers['content-encoding'], plain.replayed], [undefined, true]);
            assert.match(plain.text, /xxx/);
          },
          { use: (app) => app.register(load('@fastify/compress'), { threshold: 0 }) },
        ));
    }
  });
}
