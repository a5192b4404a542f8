// Every case of http_vectors.json, with every framework and every driver; in the short form with one driver for each
// framework, and with IDEM_ONE with pg and Express only.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import http from 'node:http';
import net from 'node:net';
import { after, before, describe, test } from 'node:test';
import express5 from 'express';
import express4 from 'express4';
import fastify5 from 'fastify';
import fastify4 from 'fastify4';
import * as forExpress from 'idempotence/express';
import * as forFastify from 'idempotence/fastify';
import { Application, ask, cases, drivers, end, idle, prepare, Stage, vectors, Work } from './harness.mjs';

const file = vectors('http_vectors.json');
const calls = new Map();

/** What the handler of the test's application does with a body, and how it answers. */
async function handle({ run, work: lists }, conn, respond) {
  const stage = new Stage(run);
  const work = new Work(stage, lists, {
    respond: ({ respond: answer }) => answer,
    raise({ raise }) {
      throw typeof raise === 'number'
        ? Object.assign(new Error('raised'), { status: raise, statusCode: raise })
        : new Application(raise);
    },
  });
  // The n-th list at the n-th call with this body, of which nothing but the case knows.
  const name = JSON.stringify([run, lists]);
  work.calls = calls.get(name) ?? 0;
  calls.set(name, work.calls + 1);
  try {
    const answer = await work.do(conn);
    const { status = 200, headers = {}, json, text, base64, fill } = answer;
    const body =
      json !== undefined
        ? JSON.stringify(json)
        : base64 !== undefined
          ? Buffer.from(base64, 'base64')
          : (text ?? (fill && 'x'.repeat(fill)));
    await respond({
      status,
      headers: json === undefined ? headers : { 'Content-Type': 'application/json', ...headers },
      body,
    });
  } finally {
    await stage.close();
  }
}

const optionsOf = ({
  path,
  session,
  sql,
  answer,
  needs,
  prefix,
  identity,
  max_body: maxBody,
  handler_timeout: handlerTimeout,
  ...rest
}) => ({
  ...rest,
  ...(handlerTimeout === undefined ? {} : { handlerTimeout }),
  ...(maxBody === undefined ? {} : { maxBody }),
  ...(identity === undefined ? {} : { identity: (request) => request.headers[identity.toLowerCase()] }),
});

function onExpress(express) {
  return (pool, driver) => {
    const app = express();
    app.use((request, response, next) => {
      const refused = request.headers['x-refuse'];
      if (refused) response.status(Number(refused)).json({ error: 'refused' });
      else next();
    });
    app.use(express.json());
    for (const route of file.routes) {
      if (route.needs) continue;
      if (route.sql) app.get(route.path, async (_, response) => response.json(await ask(pool, route.sql)));
      else if (route.answer) app.get(route.path, forExpress.answer(pool, route.session, optionsOf(route)));
      else {
        const handler = forExpress.idempotent(
          pool,
          route.session,
          (request, response, conn) =>
            handle(request.body, route.lease ? pool : conn, ({ status, headers, body }) => {
              response.status(status);
              for (const [name, value] of Object.entries(headers)) response.setHeader(name, value);
              if (body === undefined) response.end();
              else response.end(body);
            }),
          optionsOf(route),
        );
        const path = route.prefix ? new RegExp(`^${route.path}`) : route.path;
        for (const method of ['post', 'patch', 'put', 'delete']) app[method](path, handler);
      }
    }
    app.use((error, _request, response, next) => {
      if (!error.status) return response.status(500).json({ error: String(error) });
      next(error);
    });
    return app.listen(0, '127.0.0.1');
  };
}

function onFastify(fastify) {
  return (pool) => {
    const app = fastify();
    app.addHook('onRequest', async (request, reply) => {
      const refused = request.headers['x-refuse'];
      if (refused) return reply.code(Number(refused)).send({ error: 'refused' });
    });
    for (const route of file.routes) {
      if (route.needs) continue;
      if (route.sql) app.get(route.path, () => ask(pool, route.sql));
      else if (route.answer) app.get(route.path, forFastify.answer(pool, route.session, optionsOf(route)));
      else {
        const handler = forFastify.idempotent(
          pool,
          route.session,
          async (request, reply, conn) => {
            await handle(request.body, route.lease ? pool : conn, ({ status, headers, body }) => {
              reply.code(status).headers(headers).send(body);
            });
            return reply;
          },
          optionsOf(route),
        );
        const path = route.prefix ? `${route.path}*` : route.path;
        for (const method of ['post', 'patch', 'put', 'delete']) app[method](path, handler);
      }
    }
    return app.listen({ port: 0, host: '127.0.0.1' }).then(() => app.server);
  };
}

const frameworks = {
  'express 5': onExpress(express5),
  'express 4': onExpress(express4),
  'fastify 5': onFastify(fastify5),
  'fastify 4': onFastify(fastify4),
};

/** Sends a request as the case says, header lines as they are. */
async function send(port, step) {
  const body = step.json === undefined ? undefined : JSON.stringify(step.json);
  const headers = { ...step.headers };
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  if (body !== undefined && !step.chunked) headers['Content-Length'] = Buffer.byteLength(body);
  if (step.truncate) return truncated(port, step, headers, body);
  const request = http.request({
    host: '127.0.0.1',
    port,
    method: step.request,
    path: step.path,
    headers,
    agent: false,
  });
  if (step.chunked) {
    request.write(body.slice(0, 10));
    request.end(body.slice(10));
  } else {
    request.end(body);
  }
  const [response] = await once(request, 'response');
  const chunks = [];
  for await (const chunk of response) chunks.push(chunk);
  return {
    status: response.statusCode,
    headers: response.headers,
    lines: response.headersDistinct,
    body: Buffer.concat(chunks),
  };
}

/**
 * Sends fewer bytes than are announced, and ends its side of the connection. The server may answer, or close the
 * connection.
 */
async function truncated(port, step, headers, body) {
  const socket = net.connect(port, '127.0.0.1');
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`);
  socket.end(
    `${step.request} ${step.path} HTTP/1.1\r\nHost: localhost\r\n${lines.join('')}\r\n${body.slice(0, -step.truncate)}`,
  );
  const chunks = [];
  for await (const chunk of socket) chunks.push(chunk);
  const status = /^HTTP\/1\.1 (\d+)/.exec(Buffer.concat(chunks))?.[1];
  return status && { status: Number(status), headers: {}, lines: {}, body: Buffer.alloc(0) };
}

/** Whether the pattern matches the whole value. `(?i)` in front ignores case, which JavaScript writes as a flag. */
function whole(pattern, value) {
  const [, ignored, rest] = /^(\(\?i\))?(.*)$/s.exec(pattern);
  return new RegExp(`^(?:${rest})$`, ignored ? 'si' : 's').test(value);
}

function compare(answer, expected, earlier) {
  if (!answer) return;
  const { status, json, body, headers = {}, absent = [], same_as: sameAs, replayed, problem, detail } = expected;
  const seen = `${answer.status} ${JSON.stringify(answer.headers)} ${answer.body}`;
  if (status !== undefined) assert.ok(whole(status, String(answer.status)), `expected ${status}: ${seen}`);
  if (json !== undefined) assert.deepEqual(JSON.parse(answer.body), json);
  if (body !== undefined) assert.equal(String(answer.body), body);
  for (const [name, pattern] of Object.entries(headers)) {
    assert.ok(
      (answer.lines[name.toLowerCase()] ?? []).some((value) => whole(pattern, value)),
      `${name}: ${seen}`,
    );
  }
  for (const name of absent) assert.equal(answer.headers[name.toLowerCase()], undefined, name);
  if (sameAs !== undefined) {
    const first = earlier[sameAs];
    assert.equal(answer.status, first.status);
    assert.equal(answer.headers['content-type'], first.headers['content-type']);
    assert.deepEqual(answer.body, first.body);
  }
  if (replayed !== undefined) assert.equal(answer.headers['idempotent-replayed'] === 'true', replayed, seen);
  if (problem !== undefined) {
    assert.match(answer.headers['content-type'], /^application\/problem\+json/, seen);
    const told = JSON.parse(answer.body);
    assert.ok(told.type.endsWith(`#${problem}`), told.type);
    assert.equal(told.status, answer.status);
    assert.ok(told.title);
    assert.match(answer.headers.link, /rel="describedby"/);
    assert.ok(told.detail);
    if (detail !== undefined) assert.ok(whole(detail, told.detail), told.detail);
  }
}

async function play(stage, port, steps) {
  const started = new Map();
  const earlier = [];
  for (const step of steps) {
    if (await stage.step(step)) continue;
    if (step.finish !== undefined) {
      for (const [answer, expected] of await started.get(step.finish)) compare(answer, expected, earlier);
      continue;
    }
    const sent = Promise.all(
      Array.from({ length: step.times ?? 1 }, async () => [await send(port, step), step.expect]),
    );
    if (step.start !== undefined) {
      started.set(step.start, sent);
      continue;
    }
    for (const [answer, expected] of await sent) {
      compare(answer, expected, earlier);
      if (step.times === undefined) earlier.push(answer);
    }
  }
}

for (const [driver, open] of Object.entries(drivers)) {
  for (const [framework, listen] of Object.entries(frameworks)) {
    if (process.env.IDEM_ONE && (driver !== 'pg' || framework !== 'express 5')) continue;
    if (!process.env.IDEM_LONG && (driver === 'pg') !== ['express 5', 'fastify 4'].includes(framework)) continue;
    describe(`${framework}, ${driver}`, () => {
      let pool;
      let server;
      before(async () => {
        await prepare(file);
        pool = open({ max: 4 });
        server = await listen(pool, driver);
        if (!server.listening) await once(server, 'listening');
      });
      after(async () => {
        server.closeAllConnections();
        server.close();
        await end(pool);
      });

      for (const one of cases(file, ['status exceptions', 'any status exceptions', 'chunked bodies', 'raw paths'])) {
        test(one.name, async () => {
          const stage = new Stage(one.run);
          try {
            await play(stage, server.address().port, one.steps);
            await stage.end(one.effects);
          } finally {
            await stage.close();
          }
          if (driver === 'pg') await idle(pool);
        });
      }
    });
  }
}
