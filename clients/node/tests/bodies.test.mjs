// Bodies in every form in which a parser leaves them: two bodies that differ are never taken for one.

import assert from 'node:assert/strict';
import http2 from 'node:http2';
import net from 'node:net';
import { once } from 'node:events';
import { createRequire } from 'node:module';
import { Readable } from 'node:stream';
import { after, before, describe, test } from 'node:test';
import { idempotent } from 'idempotence/fastify';
import {
  request as send,
  expressApp,
  expresses,
  fastifies,
  fastifyApp,
  fresh,
  problemOf,
  serving,
  SESSION,
  stage,
  writing,
} from './application.mjs';
import { drivers, end, prepare, vectors } from './harness.mjs';

const load = createRequire(import.meta.url);
before(() => prepare(vectors('http_vectors.json')));
after(() => stage.close());

/** What a parser leaves, for a body of two values that differ. */
const forms = {
  'a Map': (n) => new Map([['amount', n]]),
  'a Map in an object': (n) => ({ pay: new Map([['amount', n]]) }),
  'a Set': (n) => new Set([n]),
  'a BigInt': (n) => ({ amount: BigInt(n) }),
  'a BigInt, or the number': (n) => ({ amount: n === 1 ? 1n : 1 }),
  'a Date': (n) => ({ at: new Date(n) }),
  'a Buffer in an object': (n) => ({ bytes: Buffer.from([n % 256]) }),
  URLSearchParams: (n) => new URLSearchParams({ amount: String(n) }),
  'NaN, or Infinity': (n) => ({ amount: n === 1 ? NaN : Infinity }),
  'null, or NaN': (n) => ({ amount: n === 1 ? null : NaN }),
  'undefined, or no member': (n) => (n === 1 ? { a: undefined } : {}),
  'a negative zero': (n) => ({ amount: n === 1 ? 0 : -0 }),
  'an object without a prototype': (n) => Object.assign(Object.create(null), { amount: n }),
  'a string': (n) => String(n),
  'a Buffer': (n) => Buffer.from(String(n)),
};
/** What cannot be compared completely. */
const refused = {
  'a stream': () => Readable.from(['1']),
  'an object of a class': () =>
    new (class Payment {
      #amount = 1;
    })(),
  'an object that writes itself': () => ({ toJSON: () => 1 }),
  'a function in an object': () => ({ amount() {} }),
  'a circle': () => {
    const circle = {};
    return Object.assign(circle, { circle });
  },
};

for (const [framework, express] of Object.entries(expresses)) {
  describe(framework, () => {
    let pool;
    before(() => (pool = drivers.pg()));
    after(() => end(pool));
    let calls = 0;
    const handler = (_request, response) => response.json({ n: ++calls });
    const serves = (parse, use) => serving(expressApp(express, writing(pool, handler), { parse }), pool, use);
    const leaving = (make) => (app, framework) =>
      app.use(framework.json(), (request, _response, next) => {
        request.body = make(Number(request.headers['x-n']));
        next();
      });

    for (const [name, make] of Object.entries(forms)) {
      test(`${name} is compared`, () =>
        serves(leaving(make), async (post) => {
          const first = await post({ headers: { 'X-N': '1' } });
          assert.equal(first.status, 200);
          assert.equal((await post({ headers: { 'X-N': '1' } })).text, first.text);
          assert.equal((await post({ headers: { 'X-N': '1000' } })).status, 422);
        }));
    }
    for (const [name, make] of Object.entries(refused)) {
      test(`${name} is refused`, () =>
        serves(leaving(make), async (post) => {
          const answer = await post();
          assert.deepEqual([answer.status, problemOf(answer)], [415, 'body-unsupported']);
        }));
    }

    test('a body that another middleware has read, and left nowhere', () =>
      serves(
        (app, { json }) =>
          app.use(json(), async (request, _response, next) => {
            if (request.is('application/xml')) for await (const _ of request);
            next();
          }),
        async (post) => {
          const answer = await post({ body: '<amount>1</amount>', headers: { 'Content-Type': 'application/xml' } });
          assert.deepEqual([answer.status, problemOf(answer)], [415, 'body-unsupported']);
        },
      ));

    test('the bytes that a middleware has left in req.rawBody', () =>
      serves(
        (app, { json }) =>
          app.use(json(), async (request, _response, next) => {
            if (request.is('application/xml'))
              request.rawBody = Buffer.concat((await Array.fromAsync?.(request)) ?? (await all(request)));
            next();
          }),
        async (post) => {
          const xml = (n) => post({ body: `<amount>${n}</amount>`, headers: { 'Content-Type': 'application/xml' } });
          assert.deepEqual([(await xml(1)).status, (await xml(1)).replayed, (await xml(2)).status], [200, true, 422]);
        },
      ));

    test('a body that nobody has read', () =>
      serves(
        (app, { json }) => app.use(json()),
        async (post) => {
          for (const type of ['text/csv', 'application/xml', 'multipart/form-data; boundary=x']) {
            const answer = await post({ body: 'a,b', headers: { 'Content-Type': type } });
            assert.deepEqual([answer.status, problemOf(answer)], [415, 'body-unsupported']);
          }
        },
      ));

    test('an empty object that a parser has read', () =>
      serves(
        (app, { json }) => app.use(json()),
        async (post) => {
          assert.equal((await post({ body: '{ }' })).status, 200);
          assert.equal((await post({ body: '{}' })).replayed, true);
          assert.equal((await post({ body: '{"a":1}' })).status, 422);
        },
      ));

    test('a form, and JSON with the same values', () =>
      serves(
        (app, { json, urlencoded }) => app.use(json(), urlencoded({ extended: false })),
        async (post) => {
          const form = (body) => post({ body, headers: { 'Content-Type': 'application/x-www-form-urlencoded' } });
          assert.deepEqual(
            [(await form('a=1')).status, (await form('a=1')).replayed, (await form('a=2')).status],
            [200, true, 422],
          );
          assert.equal((await post({ body: '{"a":"1"}' })).status, 422);
        },
      ));

    test('text, and JSON with the same string', () =>
      serves(
        (app, { json, text }) => app.use(json({ strict: false }), text()),
        async (post) => {
          const plain = (body) => post({ body, headers: { 'Content-Type': 'text/plain' } });
          assert.deepEqual(
            [(await plain('abc')).status, (await plain('abc')).replayed, (await plain('abd')).status],
            [200, true, 422],
          );
          assert.equal((await post({ body: '"abc"' })).status, 422);
        },
      ));

    test('no body, and an empty one', () =>
      serves(
        (app, { json }) => app.use(json()),
        async (post) => {
          assert.equal((await post({ body: null })).status, 200);
          const answer = await post({ body: '' });
          assert.equal(answer.replayed, true, answer.text);
          assert.equal((await post()).status, 422);
        },
      ));

    test('a body that breaks off, read by a middleware that does not notice', async () => {
      const server = await expressApp(express, writing(pool, handler), {
        parse: (app) =>
          app.use((request, _response, next) => {
            request.body = '';
            request.on('data', (chunk) => (request.body += chunk));
            request.on('close', () => next());
          }),
      });
      const before = calls;
      const socket = net.connect(server.address().port, '127.0.0.1');
      socket.end(
        `POST / HTTP/1.1\r\nHost: a\r\nIdempotency-Key: ${fresh()}\r\nContent-Type: text/plain\r\n` +
          'Content-Length: 18\r\n\r\n{"amount": 10',
      );
      await once(socket.resume(), 'close');
      await new Promise((wake) => setTimeout(wake, 100));
      assert.equal(calls, before);
      server.close();
    });
  });
}

async function all(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

for (const [framework, fastify] of Object.entries(fastifies)) {
  describe(framework, () => {
    let pool;
    before(() => (pool = drivers.pg()));
    after(() => end(pool));
    let calls = 0;
    const handler = async () => ({ n: ++calls });
    const serves = (use, then) => serving(fastifyApp(fastify, pool, handler, {}, { use }), pool, then);
    const own = 'application/x-own';
    const leaving = (make) => (app) =>
      app.addContentTypeParser(own, { parseAs: 'string' }, (_request, body, done) => done(null, make(Number(body))));

    for (const [name, make] of Object.entries(forms)) {
      test(`${name} is compared`, () =>
        serves(leaving(make), async (post) => {
          const send = (n) => post({ body: String(n), headers: { 'Content-Type': own } });
          const first = await send(1);
          assert.equal(first.status, 200);
          assert.equal((await send(1)).text, first.text);
          assert.equal((await send(1000)).status, 422);
        }));
    }
    for (const [name, make] of Object.entries(refused)) {
      test(`${name} is refused`, () =>
        serves(leaving(make), async (post) => {
          const answer = await post({ body: '1', headers: { 'Content-Type': own } });
          assert.deepEqual([answer.status, problemOf(answer)], [415, 'body-unsupported']);
        }));
    }

    test('a body that a parser leaves in its stream', () =>
      serves(
        (app) => app.addContentTypeParser(own, (_request, body, done) => done(null, body)),
        async (post) => assert.equal((await post({ body: '1', headers: { 'Content-Type': own } })).status, 415),
      ));

    test('HTTP/2: an empty key is malformed where a key is optional', async () => {
      const app = fastify({ http2: true });
      app.post('/', idempotent(pool, SESSION, handler, { required: false }));
      const session = http2.connect(await app.listen({ port: 0, host: '127.0.0.1' }));
      try {
        for (const [key, status] of Object.entries({ '': 400, a: 200, 'a, b': 400 })) {
          const sent = key === 'a' ? fresh() : key;
          const type = { 'content-type': 'application/json' };
          const stream = session.request({ ':method': 'POST', ':path': '/', ...type, 'idempotency-key': sent });
          stream.end('{}');
          const [headers] = await once(stream, 'response');
          for await (const _ of stream);
          assert.equal(headers[':status'], status, JSON.stringify(key));
        }
      } finally {
        session.close();
        await app.close();
      }
    });

    test('HTTP/2: JSON without a length is compared, and a multipart is refused', async () => {
      const app = fastify({ http2: true });
      if (framework === 'fastify 5') await app.register(load('@fastify/multipart'));
      else
        app.addContentTypeParser('multipart/form-data', (_request, body, done) => done(null, undefined, body.resume()));
      app.post('/', idempotent(pool, SESSION, handler));
      const session = http2.connect(await app.listen({ port: 0, host: '127.0.0.1' }));
      const key = fresh();
      const post = async (type, body) => {
        const stream = session.request({
          ':method': 'POST',
          ':path': '/',
          'content-type': type,
          'idempotency-key': key,
        });
        stream.end(body);
        const [headers] = await once(stream, 'response');
        for await (const _ of stream);
        return [headers[':status'], headers['idempotent-replayed']];
      };
      const part = (amount) => `--X\r\nContent-Disposition: form-data; name="amount"\r\n\r\n${amount}\r\n--X--\r\n`;
      try {
        assert.deepEqual(await post('application/json', '{"amount":1}'), [200, undefined]);
        assert.deepEqual(await post('application/json', '{"amount":1}'), [200, 'true']);
        assert.deepEqual(await post('application/json', '{"amount":1000}'), [422, undefined]);
        for (const amount of [1, 1000])
          assert.deepEqual(await post('multipart/form-data; boundary=X', part(amount)), [415, undefined]);
      } finally {
        session.close();
        await app.close();
      }
    });
  });
}
