// The Idempotency-Key header for Fastify.

import { signal, type Database } from './database.js';
import { isRetryable } from './errors.js';
import { problem, serve, tell, type Given, type HttpOptions, type Incoming, type Outgoing } from './http.js';

/** Options of a route. */
interface Route {
  handler: (request: any, reply: any) => Promise<any>;
  onSend: (request: any, reply: any, payload: any) => Promise<any>;
}

/** Answers that Fastify has made, and which wait for the end of a transaction, by their requests. */
const waiting = new WeakMap<object, { made: (answer: Outgoing) => void; leaves: Promise<Outgoing> }>();

function told(request: any, options: HttpOptions): Incoming {
  const { method, originalUrl, headers, body } = request;
  return { method, url: originalUrl, headers, body: body ?? undefined, identity: options.identity?.(request) };
}

async function bytes(payload: any): Promise<Buffer> {
  if (typeof payload === 'string' || ArrayBuffer.isView(payload)) return Buffer.from(payload as Uint8Array);
  const chunks: Buffer[] = [];
  for await (const chunk of payload ?? []) chunks.push(Buffer.from(chunk));
  return Buffer.concat(chunks);
}

/** Calls the handler, and keeps back what it sends. What goes past Fastify is refused: it would leave before COMMIT. */
async function held(handler: any, request: any, reply: any, conn: unknown): Promise<unknown> {
  const past = ['writeHead', 'write', 'end'];
  const refuse = () => {
    throw new Error('an answer past Fastify would leave before COMMIT: return it, or reply.send() it');
  };
  let sent: { payload: unknown } | undefined;
  const over = signal();
  for (const method of past) reply.raw[method] = refuse;
  reply.send = (payload: unknown) => {
    sent ??= { payload };
    over.resolve(undefined);
    return reply;
  };
  try {
    reply.then = undefined; // who returns the reply would wait for the end of the response
    const payload = await handler(request, reply, conn);
    if (payload !== undefined && payload !== reply) return payload;
    // Who answers later may never do so once the caller has gone.
    reply.raw.once('close', over.resolve);
    if (!sent && !reply.raw.destroyed) await over.promise;
    if (!sent) throw new Error('the caller has gone, and the handler has not answered');
    return sent.payload;
  } finally {
    for (const method of past) delete reply.raw[method];
    delete reply.send;
    delete reply.then;
  }
}

function put(reply: any, { status, headers }: Pick<Outgoing, 'status' | 'headers'>) {
  for (const name of Object.keys(reply.getHeaders())) reply.removeHeader(name);
  reply.code(status).headers(Object.fromEntries(headers));
}

/** Protects a handler: `app.post(path, idempotent(…))`. It works on `conn` and answers as ever. The answer leaves when COMMIT
 *  has returned. */
export function idempotent<D extends Database, O extends HttpOptions = {}>(
  database: D, session: string, handler: (request: any, reply: any, conn: Given<D, O>) => unknown, options: O & HttpOptions = {} as O,
): Route {
  return {
    async handler(request, reply) {
      const before = { status: reply.statusCode, headers: Object.entries<string>(reply.getHeaders()) };
      const leaves = signal<Outgoing>();
      let made = false;
      try {
        const answer = await serve(database, session, told(request, options), options, async (conn) => {
          // Fastify makes an answer only once, and COMMIT has failed after that.
          if (made) return problem('unavailable', options);
          put(reply, before);
          let thrown = false;
          const payload = await held(handler, request, reply, conn).catch((error) => {
            if (isRetryable(error) || reply.raw.destroyed) throw error;
            thrown = true;
            put(reply, before);
            return error instanceof Error ? error : new Error(String(error));
          });
          made = true;
          const answer = signal<Outgoing>();
          waiting.set(request, { made: answer.resolve, leaves: leaves.promise });
          try {
            reply.send(payload);
          } catch (error) {
            thrown = true;
            reply.send(error);
          }
          return { ...(await answer.promise), thrown };
        });
        if (made) leaves.resolve({ ...answer, headers: [...before.headers, ...answer.headers] });
        else {
          put(reply, { status: answer.status, headers: [...before.headers, ...answer.headers] });
          reply.send(answer.body);
        }
      } catch (error) {
        if (!made) throw error;
        leaves.reject(error);
      }
      return reply;
    },
    async onSend(request, reply, payload) {
      const waits = waiting.get(request);
      if (!waits) return payload;
      waiting.delete(request);
      const body = await bytes(payload);
      const headers = Object.entries(reply.getHeaders()).map(([name, value]): [string, string] => [name, String(value)]);
      waits.made({ status: reply.statusCode, headers, body });
      const answer = await waits.leaves;
      if (answer.body !== body) put(reply, answer);
      return answer.body;
    },
  };
}

/** Answers a GET that names a request by its key: its answer, also of one at work, and never a new execution. */
export function answer(database: Database, session: string, options: HttpOptions = {}) {
  return async (request: any, reply: any) => {
    const { status, headers, body } = await tell(database, session, told(request, options), options);
    return reply.code(status).headers(Object.fromEntries(headers)).send(body);
  };
}
