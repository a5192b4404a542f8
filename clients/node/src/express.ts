// The Idempotency-Key header for Express 4 and 5.

import type { Database } from './database.js';
import { isRetryable } from './errors.js';
import { serve, tell, type Given, type HttpOptions, type Incoming, type Outgoing } from './http.js';

type Handler = (request: any, response: any, next: (error?: unknown) => void) => Promise<void>;

function told(request: any, options: HttpOptions): Incoming {
  const { method, originalUrl, headers } = request;
  // Express 4 has an empty body where no parser has read it.
  const body = request.readableDidRead ? request.body : undefined;
  return { method, url: originalUrl, headers, body, identity: options.identity?.(request) };
}

/** Keeps all that is answered, until it is known whether it may leave. */
class Held {
  readonly #before: { status: number; headers: Record<string, any> };
  #chunks: Buffer[] = [];
  #ended = false;
  #wake = () => {};

  constructor(private readonly response: any) {
    this.#before = { status: response.statusCode, headers: response.getHeaders() };
    response.once('close', () => this.#wake());
    response.flushHeaders = () => {};
    response.writeHead = (status: number, ...rest: unknown[]) => {
      response.statusCode = status;
      const headers = rest.at(-1);
      if (typeof headers === 'object') for (const [name, value] of Object.entries(headers!)) response.setHeader(name, value);
      return response;
    };
    response.write = (...rest: unknown[]) => {
      const told = this.#push(rest);
      if (told) process.nextTick(told);
      return true;
    };
    response.end = (...rest: unknown[]) => {
      const told = this.#push(rest);
      if (told) response.once('finish', told);
      this.#ended = true;
      this.#wake();
      return response;
    };
  }

  /** Gives the callback, if there is one. */
  #push([chunk, ...rest]: any[]): (() => void) | undefined {
    if (this.#ended) throw new Error('the handler has answered already');
    if (typeof chunk === 'function') return chunk;
    if (typeof chunk === 'string') this.#chunks.push(Buffer.from(chunk, typeof rest[0] === 'string' ? (rest[0] as 'utf8') : 'utf8'));
    else if (chunk) this.#chunks.push(Buffer.from(chunk));
    return rest.find((one) => typeof one === 'function');
  }

  /** Forgets what was answered so far. */
  reset() {
    this.#chunks = [];
    this.#ended = false;
    for (const name of this.response.getHeaderNames()) this.response.removeHeader(name);
    put(this.response, { status: this.#before.status, headers: Object.entries(this.#before.headers) });
  }

  /** What was answered, once all of it is there. */
  async answer(): Promise<Outgoing> {
    if (!this.#ended && !this.response.destroyed) await new Promise<void>((wake) => (this.#wake = wake));
    if (!this.#ended) throw new Error('the caller has gone, and the handler has not answered');
    const headers = Object.entries(this.response.getHeaders()).map(([name, value]): [string, string] => [name, String(value)]);
    return { status: this.response.statusCode, headers, body: Buffer.concat(this.#chunks) };
  }

  /** From now on answers leave. */
  release() {
    for (const method of ['writeHead', 'flushHeaders', 'write', 'end']) delete this.response[method];
  }
}

function put(response: any, { status, headers }: Pick<Outgoing, 'status' | 'headers'>) {
  response.statusCode = status;
  for (const [name, value] of headers) response.setHeader(name, value);
}

/** Protects a handler, which works on `conn` and answers as ever. The answer leaves when COMMIT has returned. */
export function idempotent<D extends Database, O extends HttpOptions = {}>(
  database: D, session: string, handler: (request: any, response: any, conn: Given<D, O>) => unknown, options: O & HttpOptions = {} as O,
): Handler {
  return async (request, response, next) => {
    const held = new Held(response);
    let own: Outgoing | undefined;
    try {
      const answer = await serve(database, session, told(request, options), options, async (conn) => {
        held.reset();
        try {
          await handler(request, response, conn);
          return (own = await held.answer());
        } catch (error) {
          if (isRetryable(error)) throw error;
          // The application's own handlers of errors answer.
          held.reset();
          next(error);
          return (own = { ...(await held.answer()), thrown: true });
        }
      });
      held.release();
      if (answer !== own) {
        held.reset();
        put(response, answer);
      }
      response.end(answer.body);
    } catch (error) {
      held.release();
      held.reset();
      next(error);
    }
  };
}

/** Answers a GET that names a request by its key: its answer, also of one at work, and never a new execution. */
export function answer(database: Database, session: string, options: HttpOptions = {}): Handler {
  return async (request, response, next) => {
    try {
      const answer = await tell(database, session, told(request, options), options);
      put(response, answer);
      response.end(answer.body);
    } catch (error) {
      next(error);
    }
  };
}
