// The header Idempotency-Key for Fastify 4 and 5. The handler's answer takes Fastify's own way through serialization
// and hooks, up to the last hook of the route, which waits for COMMIT.

import { signal, type Database } from './database.js';
import { checked, checkedAnswer, serve, tell, type Given, type HttpOptions } from './http.js';
import { bodyOf, keysOf, type Incoming } from './incoming.js';
import { checkFunction } from './options.js';
import { byName, HEADERS, headersOf, TRAILERS, type Outgoing } from './outgoing.js';
import { problem } from './problems.js';

export { recordable, type Returned } from './outgoing.js';
export type { HttpOptions } from './http.js';

/** The options of a route. */
interface RouteOptions {
  handler: (request: any, reply: any) => Promise<any>;
  onSend: (request: any, reply: any, payload: any) => Promise<any>;
  onError: (request: any, reply: any, error: any) => Promise<void>;
}

const PAST =
  'the answer must not bypass Fastify (reply.raw, reply.hijack, reply.callNotFound), as it would be sent before ' +
  'COMMIT: ' +
  'return it, reply.send() it, or throw an error with a statusCode';
const STREAM =
  'an answer is sent after COMMIT, so it cannot be a stream of events: serve it on a route without the adapter';
const GONE = 'the caller has disconnected, and the handler has not answered';
const LEFT = 'the answer bypassed the hooks of the route, so it could not be recorded';

/** The state of a request between its handler and the last hook. */
interface Pending {
  /** Called by the last hook, with the answer that Fastify has made. Returns the answer to send. */
  arrive(answer: Outgoing): Promise<Outgoing>;
  /** Whether Fastify has made the answer of an error. */
  failed: boolean;
  /** The headers of another answer than the handler's own: undefined, or as they were before the handler. */
  before?: [string, string][];
}
const pending = new WeakMap<object, Pending>();

function incoming(request: any, { identity }: HttpOptions): Incoming {
  const { raw } = request;
  const method = request.routeOptions?.method ?? request.routerMethod;
  return {
    method: request.method,
    url: request.originalUrl,
    keys: keysOf(raw),
    body: bodyOf(raw, request.body, request.rawBody),
    methods: method && [method].flat(),
    ...(identity && { identify: () => identity(request) }),
  };
}

/** The payload in a form in which it is complete: a stream or a Response is read to its end. */
async function complete(payload: any, reply: any): Promise<unknown> {
  if (typeof payload !== 'object' || payload === null || payload instanceof Error) return payload;
  if (Object.prototype.toString.call(payload) === '[object Response]') {
    reply.code(payload.status);
    for (const [name, value] of payload.headers) reply.header(name, value);
    return payload.body === null ? undefined : Buffer.from(await payload.arrayBuffer());
  }
  if (typeof payload.pipe !== 'function' && typeof payload.getReader !== 'function') return payload;
  if (String(reply.getHeader('content-type')).startsWith('text/event-stream')) {
    payload.destroy?.();
    throw new Error(STREAM);
  }
  return read(payload);
}

async function read(stream: AsyncIterable<any>): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of stream) chunks.push(Buffer.from(chunk));
  return Buffer.concat(chunks);
}

/**
 * Replaces methods of an object; returns a function that brings back what was there, wrappers of middleware included.
 */
function replace(target: any, methods: Record<string, unknown>): () => void {
  const before = Object.keys(methods).map((name) => [name, Object.getOwnPropertyDescriptor(target, name)] as const);
  for (const [name, value] of Object.entries(methods)) {
    Object.defineProperty(target, name, { configurable: true, writable: true, value });
  }
  return () => {
    for (const [name, descriptor] of before) {
      if (target[name] !== methods[name]) continue;
      if (descriptor) Object.defineProperty(target, name, descriptor);
      else delete target[name];
    }
  };
}

/**
 * Calls the handler, and returns what it has sent, returned or thrown. An answer that would bypass Fastify is refused.
 */
async function handled(
  handler: any,
  request: any,
  reply: any,
  given: unknown,
  abandoned: Promise<unknown>,
): Promise<unknown> {
  const refuse = () => {
    throw new Error(PAST);
  };
  let sent: { payload: unknown } | undefined;
  const over = signal();
  const restore = [
    replace(reply.raw, { writeHead: refuse, write: refuse, end: refuse }),
    replace(reply, {
      hijack: refuse,
      callNotFound: refuse,
      trailer() {
        throw new Error(TRAILERS);
      },
      send(payload: unknown) {
        sent ??= { payload };
        over.resolve(undefined);
        return reply;
      },
      // A handler that returns the reply would wait for the end of the response.
      then: undefined,
    }),
  ];
  try {
    const called = handler(request, reply, given);
    const isAsync = typeof called?.then === 'function' && called !== reply;
    const returned = await Promise.race([called, abandoned]);
    if (returned !== undefined && returned !== reply) return await complete(returned, reply);
    // An asynchronous function that returns nothing and has sent nothing has answered with an empty body, as in
    // Fastify.
    if (!sent && isAsync && returned === undefined) return undefined;
    if (!sent) {
      reply.raw.once('close', over.resolve);
      if (!reply.raw.destroyed) await Promise.race([over.promise, abandoned]);
      reply.raw.removeListener('close', over.resolve);
    }
    if (!sent) throw new Error(GONE);
    return await complete(sent.payload, reply);
  } finally {
    for (const one of restore) one();
  }
}

/** Gives the reply a status and headers; several values of a header become an array. */
function put(reply: any, { status, headers }: Pick<Outgoing, 'status' | 'headers'>) {
  reply.code(status);
  for (const [name, value] of byName(headers)) {
    reply.removeHeader(name);
    reply.header(name, value);
  }
}

function clear(reply: any, names = Object.keys(reply.getHeaders())) {
  for (const name of names) reply.removeHeader(name);
}

/**
 * Protects a handler: `app.post(path, idempotent(…))`. It works on `conn` and answers as in any route. The answer is
 * sent when COMMIT has returned.
 */
export function idempotent<D extends Database, O extends HttpOptions = {}>(
  database: D,
  session: string,
  handler: (request: any, reply: any, conn: Given<D, O>) => unknown,
  options: O & HttpOptions = {} as O,
): RouteOptions {
  const route = checked(database, session, options);
  checkFunction('the handler', handler);
  const kept = (options.headers ?? HEADERS).map((name) => name.toLowerCase());

  return {
    async handler(request, reply) {
      const before = { status: reply.statusCode, headers: headersOf(reply.getHeaders()) };
      const leaves = signal<Outgoing>();
      const abandoned = signal<never>();
      let own: Outgoing | undefined;
      /** Ends the answer that Fastify has made past the hooks of the route. */
      let endPast: (() => void) | undefined;

      /** Lets Fastify make the answer, and returns it when it arrives at the last hook. */
      async function made(payload: unknown): Promise<Outgoing> {
        const arrived = signal<Outgoing>();
        const state: Pending = {
          failed: false,
          before: before.headers,
          arrive(answer) {
            arrived.resolve(answer);
            return leaves.promise;
          },
        };
        pending.set(request, state);
        // The answer that Fastify makes without its hooks, after an error in one of them, is not recorded. Fastify
        // sends it at once. It is held back until the transaction has ended: a caller that retries must find no claim.
        const { writeHead, end } = reply.raw;
        const restore = replace(reply.raw, {
          writeHead(...rest: any[]) {
            arrived.reject(new Error(LEFT));
            if (Number(rest[0]) < 400) throw new Error(LEFT);
            return writeHead.apply(reply.raw, rest);
          },
          end(...rest: any[]) {
            if (!reply.raw.headersSent) reply.raw.writeHead(reply.statusCode);
            endPast = () => end.apply(reply.raw, rest);
            return reply.raw;
          },
        });
        try {
          try {
            reply.send(payload);
          } catch (error) {
            reply.send(error);
          }
          const answer = await Promise.race([arrived.promise, abandoned.promise]);
          return { ...answer, thrown: state.failed };
        } finally {
          restore();
        }
      }

      /** Sends an answer that is not the handler's own. */
      function send(answer: Outgoing) {
        clear(reply);
        put(reply, { status: answer.status, headers: [...before.headers, ...answer.headers] });
        pending.set(request, { failed: false, arrive: async () => answer });
        reply.send(answer.body.length > 0 ? answer.body : undefined);
      }

      try {
        const answer = await serve(route, incoming(request, route.options), {
          async answer(given, attempt) {
            // Fastify makes an answer only once. The transaction of the first one was lost after that.
            if (own || endPast) return problem('unavailable', route.options.docs);
            clear(reply);
            put(reply, before);
            const payload = await handled(handler, request, reply, given, abandoned.promise).catch((thrown) => {
              clear(reply);
              put(reply, before);
              if (attempt.repeats() || reply.raw.destroyed) throw thrown;
              const error: any = attempt.explain(thrown);
              return error instanceof Error ? error : Object.assign(new Error(error?.message ?? String(error)), error);
            });
            return (own = await made(payload));
          },
          abandon: () => abandoned.reject(new Error(GONE)),
        });
        if (endPast) endPast();
        else if (own && pending.get(request)) leaves.resolve(answer);
        else send(answer);
      } catch (error) {
        endPast?.();
        // Past the last hook, Fastify can make another answer only there.
        if (!own) throw error;
        leaves.reject(error);
      }
      return reply;
    },

    async onError(request) {
      const state = pending.get(request);
      if (state) state.failed = true;
    },

    async onSend(request, reply, payload) {
      const state = pending.get(request);
      if (!state) return payload;
      if (
        payload !== undefined &&
        payload !== null &&
        typeof payload === 'object' &&
        !ArrayBuffer.isView(payload) &&
        typeof payload.pipe !== 'function' &&
        typeof payload.getReader !== 'function'
      ) {
        throw new TypeError(
          `a payload of type ${typeof payload} cannot be sent with the content type ` +
            `${reply.getHeader('content-type')}: serialize it, or set a serializer`,
        );
      }
      const body =
        typeof payload === 'string' || ArrayBuffer.isView(payload)
          ? Buffer.from(payload as Uint8Array)
          : payload
            ? await read(payload)
            : Buffer.alloc(0);
      const own: Outgoing = { status: reply.statusCode, headers: headersOf(reply.getHeaders()), body };
      const answer = await state.arrive(own);
      pending.delete(request);
      if (answer.body === body) return payload === undefined || payload === null ? payload : body;
      // What the handler has set belongs to its own answer. In a replay, the hooks before this one have set headers
      // that stay, but the bytes are those that were recorded.
      if (state.before) {
        clear(reply);
        put(reply, { status: answer.status, headers: state.before });
      } else {
        clear(reply, kept);
      }
      put(reply, answer);
      reply.removeHeader('content-length');
      return answer.body.length > 0 ? answer.body : undefined;
    },
  };
}

/**
 * Answers a GET that names a request by its key: with its answer, also of one at work. It never executes the request.
 */
export function answer(database: Database, session: string, options: HttpOptions = {}) {
  const route = checkedAnswer(database, session, options);
  return async (request: any, reply: any) => {
    const { status, headers, body } = await tell(route, incoming(request, options));
    reply.code(status);
    for (const [name, value] of byName(headers)) {
      const earlier = name === 'vary' && reply.getHeader(name);
      reply.header(name, earlier ? `${earlier}, ${value}` : value);
    }
    return reply.send(body);
  };
}
