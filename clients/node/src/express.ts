// The header Idempotency-Key for Express 4 and 5.

import type { Connection, Database } from './database.js';
import { Held } from './express_response.js';
import {
  checked,
  checkedAnswer,
  serve,
  tell,
  type Given,
  type Handling,
  type HttpOptions,
  type Route,
} from './http.js';
import { bodyOf, keysOf, type Incoming } from './incoming.js';
import type { Lease } from './lease.js';
import { checkFunction } from './options.js';
import { byName, outgoing, type Outgoing, type Returned } from './outgoing.js';
import { problem } from './problems.js';

export { recordable, type Returned } from './outgoing.js';
export type { HttpOptions } from './http.js';

type Next = (error?: unknown) => void;
type Handler = (request: any, response: any, next: Next) => Promise<void>;

function incoming(request: any, { identity }: HttpOptions): Incoming {
  return {
    method: request.method,
    url: request.originalUrl,
    keys: keysOf(request),
    body: bodyOf(request, parsedBody(request), request.rawBody),
    methods: request.route?.methods && !request.route.methods._all ? Object.keys(request.route.methods) : undefined,
    ...(identity && { identify: () => identity(request) }),
  };
}

/**
 * The body that a parser has left. In Express 4 a body that nobody has parsed is an empty object; the parser marks what
 * it has parsed by `_body`.
 */
function parsedBody(request: any): unknown {
  const { body, _body: parsed } = request;
  const isExpress4 = typeof request.app?.lazyrouter === 'function';
  const isEmpty =
    typeof body === 'object' &&
    body !== null &&
    !Array.isArray(body) &&
    Object.keys(body).length === 0 &&
    Object.getPrototypeOf(body) === Object.prototype;
  return isExpress4 && isEmpty && !parsed ? undefined : body;
}

function put(response: any, { status, headers }: Outgoing) {
  response.statusCode = status;
  for (const [name, value] of byName(headers)) {
    // Others have written into Vary what their answers depend on.
    if (name === 'vary') response.vary(value);
    // The names of the handler's own headers keep their case.
    else if (String(response.getHeader(name)) !== String(value)) response.setHeader(name, value);
  }
}

/** Sends the answer, through the wrappers of middleware in front. */
function send(response: any, answer: Outgoing) {
  put(response, answer);
  const { body } = answer;
  // Middleware in front decides by it, such as whether to compress.
  if (body.length > 0 && !response.hasHeader('content-length')) response.setHeader('Content-Length', body.length);
  // Node garbles this header if it sends it together with the body.
  if (/[^\0-\x7f]/.test(String(response.getHeader('content-disposition'))) && body.length > 0) {
    response.writeHead(response.statusCode);
  }
  response.end(body);
}

/**
 * The answer of the application to an error: it leaves it to its own handlers of errors. They can be asked only once,
 * as `next` goes on from where it was called last.
 */
class Errors {
  #asked = false;

  constructor(
    private readonly held: Held,
    private readonly next: Next,
  ) {}

  get asked(): boolean {
    return this.#asked;
  }

  async answer(error: unknown): Promise<Outgoing> {
    if (this.#asked) throw error;
    this.#asked = true;
    this.held.hold();
    // Express takes these two words, and nothing, for no error.
    const passed =
      !error || error === 'route' || error === 'router' ? new Error(`the handler threw ${String(error)}`) : error;
    return { ...(await this.held.collect(() => void this.next(passed))), thrown: true };
  }
}

/** A middleware that serves a request. `call` calls the handler, and returns its answer. */
function middleware(route: Route, call: (request: any, given: any, held: Held) => Promise<Outgoing>): Handler {
  return async (request, response, next) => {
    const held = new Held(request, response);
    const errors = new Errors(held, next);
    let own: Outgoing | undefined;
    const handling: Handling = {
      async answer(given, attempt) {
        held.reset();
        try {
          return (own = await call(request, given, held));
        } catch (error) {
          held.reset();
          if (attempt.repeats()) throw error;
          return (own = await errors.answer(attempt.explain(error)));
        }
      },
      abandon: () => held.abandon(),
    };
    try {
      const answer = await serve(route, incoming(request, route.options), handling);
      held.release();
      if (held.isSent) return;
      // Headers of the handler that are not recorded, such as Set-Cookie, are part of its own answer only.
      if (answer !== own) held.reset();
      send(response, answer);
    } catch (error) {
      held.release();
      held.reset();
      if (held.isSent)
        return void console.error('idempotence: an answer was sent before its request had ended:', error);
      if (!errors.asked) return next(error);
      console.error('idempotence: the answer to an error could not be recorded:', error);
      send(response, problem('unavailable', route.options.docs));
    }
  };
}

/**
 * Protects handlers of one session: `app.post(path, idempotent(async (req, conn) => ({ status, headers, body })))`. A
 * handler works on `conn` and returns its answer, which is sent when COMMIT has returned.
 */
export function idempotency<D extends Database>(database: D, session: string, options: HttpOptions = {}) {
  checked(database, session, options);
  return <O extends HttpOptions = {}>(
    handler: (request: any, conn: O extends { lease: number } ? Lease : Connection<D>) => Returned | Promise<Returned>,
    more: O & HttpOptions = {} as O,
  ): Handler => {
    checkFunction('the handler', handler);
    const route = checked(database, session, { ...options, ...more });
    return middleware(route, async (request, given) => outgoing(await handler(request, given)));
  };
}

/**
 * Protects a handler that writes its answer to `res`. What it writes is kept back until COMMIT has returned, so it
 * cannot wait for its response to be sent.
 */
export function idempotent<D extends Database, O extends HttpOptions = {}>(
  database: D,
  session: string,
  handler: (request: any, response: any, conn: Given<D, O>) => unknown,
  options: O & HttpOptions = {} as O,
): Handler {
  const route = checked(database, session, options);
  checkFunction('the handler', handler);
  return middleware(route, (request, given, held) => {
    held.hold();
    return held.collect(() => handler(request, held.response, given));
  });
}

/**
 * Answers a GET that names a request by its key: with its answer, also of one at work. It never executes the request.
 */
export function answer(database: Database, session: string, options: HttpOptions = {}): Handler {
  const route = checkedAnswer(database, session, options);
  return async (request, response, next) => {
    try {
      send(response, await tell(route, incoming(request, options)));
    } catch (error) {
      next(error);
    }
  };
}
