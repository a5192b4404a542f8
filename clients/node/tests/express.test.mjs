// Express: every way in which a handler answers, and middleware in front of the adapter, which must behave as without
// it.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { Readable } from 'node:stream';
import { finished, pipeline } from 'node:stream/promises';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { gunzipSync } from 'node:zlib';
import compression from 'compression';
import cookieSession from 'cookie-session';
import cors from 'cors';
import session from 'express-session';
import helmet from 'helmet';
import createError from 'http-errors';
import morgan from 'morgan';
import responseTime from 'response-time';
import {
  request as send,
  effect,
  effects,
  expressApp,
  expresses,
  fresh,
  returning,
  serving,
  stage,
  statusOf,
  told,
  writing,
} from './application.mjs';
import { drivers, end, prepare, slow, vectors } from './harness.mjs';

const file = path.join(mkdtempSync(path.join(tmpdir(), 'express-')), 'file.txt');
writeFileSync(file, 'the file');

before(() => prepare(vectors('http_vectors.json')));
after(() => stage.close());

for (const [framework, express] of Object.entries(expresses)) {
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
    const writes = (handler, use, app, options) =>
      serving(expressApp(express, writing(pool, handler, options), app), pool, use);
    const returns = (handler, use, app, options) =>
      serving(expressApp(express, returning(pool, handler, options), app), pool, use);

    describe('a handler that returns its answer', () => {
      const answers = {
        'an object': [{ status: 201, body: { moved: 1 } }, 201, 'application/json; charset=utf-8', '{"moved":1}'],
        null: [{ body: null }, 200, 'application/json; charset=utf-8', 'null'],
        'a string': [{ body: 'done' }, 200, 'text/plain; charset=utf-8', 'done'],
        bytes: [{ body: Buffer.from([1, 2]) }, 200, 'application/octet-stream', '\x01\x02'],
        'no body': [{ status: 204 }, 204, undefined, ''],
        'a redirection': [{ status: 303, headers: { Location: '/x/1' } }, 303, undefined, ''],
        'its own type': [{ headers: { 'Content-Type': 'text/csv' }, body: 'a,b' }, 200, 'text/csv', 'a,b'],
      };
      for (const [name, [answer, status, type, body]] of Object.entries(answers)) {
        test(name, () =>
          returns(
            async (request, conn) => {
              await effect(conn, request.headers['idempotency-key']);
              return answer;
            },
            async (post, key) => {
              for (const replayed of [false, true]) {
                const got = await post();
                assert.deepEqual(
                  [got.status, got.headers['content-type'], got.text, got.replayed],
                  [status, type, body, replayed],
                );
                assert.equal(got.headers.location, answer.headers?.Location);
              }
              assert.equal(await effects(key), 1);
            },
          ),
        );
      }

      test('several values of a header, and a cookie that only the first answer has', () =>
        returns(
          () => ({
            headers: { Link: ['</a>; rel="next"', '</b>; rel="prev"'], 'Set-Cookie': ['a=1', 'b=2'] },
            body: {},
          }),
          async (post) => {
            const [first, second] = [await post(), await post()];
            assert.deepEqual(first.headers['set-cookie'], ['a=1', 'b=2']);
            assert.equal(second.headers['set-cookie'], undefined);
            assert.equal(first.headers.link, '</a>; rel="next", </b>; rel="prev"');
            assert.equal(second.headers.link, first.headers.link);
          },
        ));

      for (const [name, returned] of Object.entries({
        nothing: undefined,
        'a string': 'done',
        'an unknown member': { statusCode: 201 },
        'a stream': { body: Readable.from(['a']) },
        'a Response': new Response('web'),
        'a status that is none': { status: 99 },
        'a line feed in a header': { headers: { a: 'b\nc' } },
        'the header Trailer': { headers: { Trailer: 'X-Sum' } },
      })) {
        test(`${name} is refused, and nothing is kept`, () =>
          returns(
            async (request, conn) => {
              await effect(conn, request.headers['idempotency-key']);
              return returned;
            },
            async (post, key) => {
              assert.equal((await post()).status, 500);
              assert.deepEqual([await effects(key), await statusOf(key)], [0, 'unknown']);
            },
          ));
      }

      test('an error that it throws is answered by the application, and recorded without effects', () =>
        returns(
          async (request, conn) => {
            await effect(conn, request.headers['idempotency-key']);
            throw createError(402, 'insufficient funds');
          },
          async (post, key) => {
            for (const replayed of [false, true]) {
              const answer = await post();
              assert.deepEqual([answer.status, told(answer), answer.replayed], [402, 'insufficient funds', replayed]);
            }
            assert.equal(await effects(key), 0);
          },
        ));
    });

    describe('a handler that waits for its response to be sent is refused, and nothing is kept', () => {
      for (const [name, answer] of Object.entries({
        'res.end(…, callback)': (response) => new Promise((ok) => response.status(201).end('done', ok)),
        "once(res, 'finish')": async (response) => {
          response.status(201).json({});
          await once(response, 'finish');
        },
        'a listener in front of the answer': async (response) => {
          const done = once(response, 'finish');
          response.status(201).json({});
          await done;
        },
        'finished(res)': async (response) => {
          response.status(201).json({});
          await finished(response);
        },
        'pipeline(…, res)': (response) => pipeline(Readable.from(['a']), response.status(201)),
      })) {
        for (const app of [{}, { use: (app) => app.use(morgan('tiny', { stream: { write() {} } })) }]) {
          test(`${name}${app.use ? ', behind morgan' : ''}`, () =>
            writes(
              async (request, response, conn) => {
                await effect(conn, request.headers['idempotency-key']);
                await answer(response);
              },
              async (post, key) => {
                const got = await post({ timeout: 5000 });
                assert.equal(got.status, 500);
                assert.match(told(got), /waits for its response/);
                assert.deepEqual([await effects(key), await statusOf(key)], [0, 'unknown']);
              },
              app,
            ));
        }
      }
    });

    test('listeners of finish and callbacks that nobody waits for are called after COMMIT', () => {
      const seen = [];
      return writes(
        async (request, response, conn) => {
          const key = request.headers['idempotency-key'];
          await effect(conn, key);
          const look = async (name) => seen.push([name, await effects(key)]);
          response.on('finish', () => look('finish'));
          response.status(201).end('done', () => look('callback'));
        },
        async (post) => {
          assert.equal((await post()).status, 201);
          for (let n = 0; seen.length < 2 && n < 100; n++) await sleep(10);
          assert.deepEqual(seen.sort(), [
            ['callback', 1],
            ['finish', 1],
          ]);
        },
      );
    });

    const ways = {
      pipe: [
        (response) => void Readable.from(['a', 'b']).pipe(response.status(201).type('text/plain')),
        201,
        'text/plain; charset=utf-8',
        'ab',
      ],
      'write and end': [
        (response) => {
          response.status(201).type('text/plain').write('a');
          response.write(Buffer.from('b'));
          response.end('6364', 'hex');
        },
        201,
        'text/plain; charset=utf-8',
        'abcd',
      ],
      'res.sendFile': [(response) => response.sendFile(file), 200, /^text\/plain; charset=utf-8$/i, 'the file'],
      'res.sendFile with a callback': [
        (response) => new Promise((ok, no) => response.sendFile(file, (error) => (error ? no(error) : ok()))),
        200,
        /^text\/plain; charset=utf-8$/i,
        'the file',
      ],
      'res.redirect': [
        (response) => response.redirect(303, '/x/1'),
        303,
        'text/plain; charset=utf-8',
        'See Other. Redirecting to /x/1',
      ],
      'res.sendStatus': [(response) => response.sendStatus(202), 202, 'text/plain; charset=utf-8', 'Accepted'],
      'writeHead with an object': [
        (response) => response.writeHead(201, { 'Content-Type': 'text/a', Location: '/x/1' }).end('hi'),
        201,
        'text/a',
        'hi',
      ],
      'writeHead with an array': [
        (response) => response.writeHead(201, ['Content-Type', 'text/a', 'Location', '/x/1']).end('hi'),
        201,
        'text/a',
        'hi',
      ],
      'writeHead with pairs': [
        (response) =>
          response
            .writeHead(201, [
              ['Content-Type', 'text/a'],
              ['Location', '/x/1'],
            ])
            .end('hi'),
        201,
        'text/a',
        'hi',
      ],
      'writeHead with null': [(response) => response.writeHead(201, null).end('hi'), 201, undefined, 'hi'],
      'writeHead with a reason': [
        (response) => response.writeHead(201, 'Made it', { 'Content-Type': 'text/a' }).end('hi'),
        201,
        'text/a',
        'hi',
      ],
      'later, from a callback': [
        (response) => void setTimeout(() => response.status(201).type('text/a').send('hi'), 30),
        201,
        'text/a; charset=utf-8',
        'hi',
      ],
      '103 and then 201': [
        (response) => {
          response.writeEarlyHints({ link: '</style.css>; rel=preload' });
          response.status(201).type('text/a').send('hi');
        },
        201,
        'text/a; charset=utf-8',
        'hi',
      ],
      204: [(response) => response.status(204).end(), 204, undefined, ''],
    };
    for (const [name, [answer, status, type, body]] of Object.entries(ways)) {
      test(`${name}: answered, recorded and replayed`, () =>
        writes(
          async (request, response, conn) => {
            await effect(conn, request.headers['idempotency-key']);
            return answer(response);
          },
          async (post, key) => {
            for (const replayed of [false, true]) {
              const got = await post();
              assert.deepEqual([got.status, got.text, got.replayed], [status, body, replayed]);
              if (type instanceof RegExp) assert.match(got.headers['content-type'], type);
              else assert.equal(got.headers['content-type'], type);
              assert.equal(got.headers.location, answer.toString().includes('/x/1') ? '/x/1' : undefined);
            }
            assert.equal(await effects(key), 1);
          },
        ));
    }

    test('a reason phrase, and a header that occurs several times in an array', () =>
      writes(
        (_request, response) => {
          response.writeHead(201, 'Made it', ['Link', '<a>', 'Link', '<b>', 'X-A', '1']);
          response.end('hi');
        },
        async (post) => {
          const [first, second] = [await post(), await post()];
          assert.deepEqual([first.reason, first.headers.link, first.headers['x-a']], ['Made it', '<a>, <b>', '1']);
          assert.equal(second.headers.link, '<a>, <b>');
        },
      ));

    const refused = {
      'a stream of events': (response) => response.writeHead(200, { 'Content-Type': 'text/event-stream' }),
      trailers: (response) => {
        response.setHeader('Trailer', 'X-Sum');
        response.write('a');
        response.addTrailers({ 'X-Sum': '1' });
        response.end();
      },
      'the header Trailer': (response) => response.set('Trailer', 'X-Sum').json({}),
      'a wrong Content-Length': (response) => response.set('Content-Length', '5').end('hi'),
      'an invalid reason': (response) => response.writeHead(200, 'a\r\nb').end(),
      'an invalid header': (response) => response.set('Location', '/a\r\nSet-Cookie: a=1').end(),
      'an invalid status': (response) => response.writeHead(42).end(),
      'an object that is returned': () => ({ status: 201, body: {} }),
    };
    for (const [name, answer] of Object.entries(refused)) {
      test(`${name} is refused, and nothing is kept`, () =>
        writes(
          async (request, response, conn) => {
            await effect(conn, request.headers['idempotency-key']);
            return answer(response);
          },
          async (post, key) => {
            const got = await post({ timeout: 5000 });
            assert.equal(got.status, 500);
            assert.equal(got.headers['set-cookie'], undefined);
            assert.deepEqual([await effects(key), await statusOf(key)], [0, 'unknown']);
          },
        ));
    }

    test('res.headersSent and a second answer behave as without the adapter', () =>
      writes(
        (_request, response) => {
          assert.equal(response.headersSent, false);
          response.status(201).json({ n: 1 });
          assert.equal(response.headersSent, true);
          assert.throws(() => response.json({ n: 2 }), { code: 'ERR_HTTP_HEADERS_SENT' });
        },
        async (post) => assert.equal((await post()).text, '{"n":1}'),
      ));

    describe('middleware in front', () => {
      const handlers = {
        res: (app) => [
          writing(pool, (request, response) => {
            if (request.session) request.session.user = 'alice';
            response.status(201).json({ fill: 'x'.repeat(2000) });
          }),
          app,
        ],
        'a returned answer': (app) => [
          returning(pool, (request) => {
            if (request.session) request.session.user = 'alice';
            return { status: 201, body: { fill: 'x'.repeat(2000) } };
          }),
          app,
        ],
        'the application, to an error': (app) => [
          writing(pool, (request) => {
            if (request.session) request.session.user = 'alice';
            throw createError(402, 'x'.repeat(2000));
          }),
          app,
        ],
      };
      for (const [by, handler] of Object.entries(handlers)) {
        const through = (use, look) => serving(expressApp(express, ...handler({ use })), pool, look);
        const status = by.includes('error') ? 402 : 201;

        test(`express-session saves the session, answered by ${by}`, () => {
          const store = new session.MemoryStore();
          return through(
            (app) => app.use(session({ store, secret: 's', resave: false, saveUninitialized: false })),
            async (post) => {
              const answer = await post();
              assert.equal(answer.status, status);
              assert.match(answer.headers['set-cookie'][0], /^connect\.sid=/);
              assert.deepEqual(
                Object.values(store.sessions).map((one) => JSON.parse(one).user),
                ['alice'],
              );
              assert.equal((await post()).replayed, true);
            },
          );
        });

        test(`cookie-session sets its cookies, answered by ${by}`, () =>
          through(
            (app) => app.use(cookieSession({ name: 'cs', keys: ['k'] })),
            async (post) => {
              assert.match((await post()).headers['set-cookie'].join(), /cs=.*cs\.sig=/);
              assert.equal((await post()).replayed, true);
            },
          ));

        test(`compression compresses the first answer and the replay, answered by ${by}`, () =>
          through(
            (app) => app.use(compression({ threshold: 0 })),
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
          ));

        test(`response-time, morgan, helmet and cors, answered by ${by}`, () => {
          const lines = [];
          return through(
            (app) =>
              app.use(
                responseTime(),
                morgan(':status :response-time', { stream: { write: (line) => lines.push(line) } }),
                helmet(),
                cors({ origin: 'https://shop.example', exposedHeaders: ['Idempotent-Replayed'] }),
              ),
            async (post) => {
              for (let n = 0; n < 2; n++) {
                const { headers } = await post();
                assert.match(headers['x-response-time'], /ms$/);
                assert.equal(headers['x-content-type-options'], 'nosniff');
                assert.deepEqual(
                  [headers['access-control-expose-headers'], headers.vary],
                  ['Idempotent-Replayed', 'Origin'],
                );
              }
              for (let n = 0; lines.length < 2 && n < 100; n++) await sleep(10);
              for (const line of lines) assert.match(line, new RegExp(`^${status} [0-9.]+\n$`));
              assert.equal(lines.length, 2);
            },
          );
        });
      }

      for (const [name, middleware] of Object.entries({
        res: writing,
        'a returned answer': (pool) => returning(pool, () => ({ status: 303, headers: { Location: '/x' }, body: 'x' })),
      })) {
        test(`compression leaves a small answer and its replay alone, answered by ${name}`, () =>
          serving(
            expressApp(
              express,
              middleware(pool, (_request, response) => response.redirect(303, '/x')),
              { use: (app) => app.use(compression({ threshold: 1024 })) },
            ),
            pool,
            async (post) => {
              for (const replayed of [false, true]) {
                const answer = await post({ headers: { 'Accept-Encoding': 'gzip' } });
                assert.deepEqual([answer.headers['content-encoding'], answer.replayed], [undefined, replayed]);
              }
            },
          ));
      }

      test('its wrappers are the same before and after', () => {
        const seen = [];
        return writes(
          (_request, response) => void response.json({}),
          async (post) => {
            await post();
            assert.deepEqual(seen, [true]);
          },
          {
            use: (app) =>
              app.use((_request, response, next) => {
                const { end: native } = response;
                const wrapped = (response.end = function (...rest) {
                  const replaced = [
                    'write',
                    'writeHead',
                    'flushHeaders',
                    'addTrailers',
                    'headersSent',
                    'writableEnded',
                  ];
                  seen.push(response.end === wrapped && !replaced.some((name) => Object.hasOwn(response, name)));
                  return native.apply(response, rest);
                });
                next();
              }),
          },
        );
      });
    });

    describe('the application answers to errors', () => {
      test('also in the second attempt, after the connection was lost in the first one', () => {
        let calls = 0;
        return writes(
          async (_request, _response, conn) => {
            calls++;
            if (calls === 1) await conn.query('SELECT pg_terminate_backend(pg_backend_pid())').catch(() => {});
            throw createError(402, 'insufficient funds');
          },
          async (post) => {
            for (const replayed of [false, true]) {
              const answer = await post();
              assert.deepEqual([answer.status, told(answer), answer.replayed], [402, 'insufficient funds', replayed]);
            }
            assert.equal(calls, 2);
          },
        );
      });

      for (const [name, thrown] of Object.entries({ nothing: undefined, "'route'": 'route', "'router'": 'router' })) {
        test(`to a handler that throws ${name}`, () =>
          writes(
            async () => {
              throw thrown;
            },
            async (post) => assert.equal((await post()).status, 500),
          ));
      }

      test('to a file that is not there', () =>
        writes(
          async (request, response, conn) => {
            await effect(conn, request.headers['idempotency-key']);
            response.sendFile('/nowhere/at/all');
          },
          async (post, key) => {
            assert.equal((await post()).status, 404);
            assert.equal((await post()).replayed, true);
            assert.equal(await effects(key), 0);
          },
        ));
    });

    test('a middleware that has answered in the meantime is not disturbed', () => {
      let late;
      return returns(
        async (request, conn) => {
          await effect(conn, request.headers['idempotency-key']);
          await sleep(200);
          return { body: {} };
        },
        async (post, key) => {
          assert.equal((await post()).status, 503);
          for (let n = 0; (await statusOf(key)) !== 'succeeded' && n < 100; n++) await sleep(20);
          assert.deepEqual([await effects(key), late], [1, undefined]);
        },
        {
          use: (app) =>
            app.use((_request, response, next) => {
              setTimeout(() => response.status(503).end(), 50);
              next();
            }),
        },
      );
    });

    test('a caller that has gone does not keep a handler that has returned', async () => {
      const caller = new AbortController();
      await writes(
        () => setTimeout(() => caller.abort(), 50),
        (post) => assert.rejects(post({ signal: caller.signal }), { name: 'AbortError' }),
      );
    });
  });
}
