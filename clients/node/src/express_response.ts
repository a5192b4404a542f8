// Keeps back what is written to a response until the transaction has committed. Only what is correct in every case is
// kept back; the rest is refused. Middleware in front of the adapter has wrapped methods of the response; its wrappers
// see the answer when it is sent.

import { signal } from './database.js';
import { headersOf, TRAILERS, type Outgoing } from './outgoing.js';

const WAITS =
  'the handler waits for its response to be sent (the event finish, or a callback), but the response is sent after ' +
  'COMMIT, and COMMIT comes after the handler: do not wait for it, or return the answer (see idempotency)';
const STREAM =
  'an answer is sent after COMMIT, so it cannot be a stream of events: serve it on a route without the adapter';
const RETURNED =
  'the handler has returned an object and written no answer: handlers that return their answer are for idempotency()';
const GONE = 'the caller has disconnected, and the handler has not answered';
const ANSWERED = 'the handler has answered already';
/** The largest value of the setting idempotence.max_response. */
const MAX_BYTES = 256 << 20;

const coded = (message: string, code: string) => Object.assign(new Error(message), { code });

/**
 * A property of the response, replaced until `restore`. What was there, a wrapper of middleware included, comes back.
 */
class Replaced {
  readonly #before: PropertyDescriptor | undefined;
  readonly #mine: unknown;

  constructor(
    private readonly target: any,
    private readonly name: string,
    descriptor: PropertyDescriptor,
  ) {
    this.#before = Object.getOwnPropertyDescriptor(target, name);
    this.#mine = descriptor.value ?? descriptor.get;
    Object.defineProperty(target, name, { configurable: true, enumerable: true, ...descriptor });
  }

  restore() {
    const now = Object.getOwnPropertyDescriptor(this.target, this.name);
    // The handler has wrapped the replacement, which passes calls on from now on.
    if ((now?.value ?? now?.get) !== this.#mine) return;
    if (this.#before) Object.defineProperty(this.target, this.name, this.#before);
    else delete this.target[this.name];
  }
}

export class Held {
  readonly #status: number;
  readonly #reason: string;
  readonly #headers: [string, any][];
  #replaced: Replaced[] = [];
  #holds = false;
  #chunks: Buffer[] = [];
  #bytes = 0;
  /** Whether the handler has begun to answer, and whether it has ended its answer. */
  #begun = false;
  #ended = signal();
  #hasEnded = false;
  #running = false;
  /**
   * How many listeners of `finish` wait for nothing that the handler does: those of middleware in front, and of pipes.
   */
  #listeners = 0;
  #refused = signal<never>();

  constructor(
    private readonly request: any,
    readonly response: any,
  ) {
    this.#status = response.statusCode;
    this.#reason = response.statusMessage;
    this.#headers = response.getRawHeaderNames().map((name: string) => [name, response.getHeader(name)]);
  }

  /** Keeps back from now on what is written. */
  hold() {
    if (this.#holds) return;
    this.#holds = true;
    const { request, response } = this;
    this.#listeners = response.listenerCount('finish');
    response.on('pipe', this.#onPipe);
    response.on('newListener', this.#onListener);
    this.#replace('writeHead', (write: any) => this.#writeHead(write));
    this.#replace('flushHeaders', () => this.#begin());
    this.#replace('write', ([chunk, ...rest]: any[]) => {
      this.#push(chunk, rest[0]);
      const written = rest.find((one) => typeof one === 'function');
      if (written) process.nextTick(written);
      return true;
    });
    this.#replace('end', (rest: any[]) => this.#end(rest));
    this.#replace('addTrailers', () => {
      throw new Error(TRAILERS);
    });
    this.#replaced.push(new Replaced(response, 'headersSent', { get: () => this.#begun }));
    this.#replaced.push(new Replaced(response, 'writableEnded', { get: () => this.#hasEnded }));
    // res.sendFile reports its errors by the `next` of the request.
    const { next } = request;
    this.#replaced.push(
      new Replaced(request, 'next', {
        writable: true,
        value: (error: unknown) => {
          if (!this.#holds || !error) return next(error);
          this.#refused.reject(error);
        },
      }),
    );
  }

  #replace(name: string, value: (rest: any[]) => unknown) {
    const { response } = this;
    const before = response[name];
    this.#replaced.push(
      new Replaced(response, name, {
        writable: true,
        value: (...rest: any[]) => (this.#holds ? value(rest) : before.apply(response, rest)),
      }),
    );
  }

  readonly #onPipe = () => void this.#listeners++;
  readonly #onListener = (event: string) => {
    if (event === 'finish' && this.#hasEnded) this.#checkWaiting();
  };

  #begin() {
    if (this.#hasEnded) throw coded(ANSWERED, 'ERR_HTTP_HEADERS_SENT');
    this.#begun = true;
    if (String(this.response.getHeader('content-type')).startsWith('text/event-stream')) throw new Error(STREAM);
  }

  /** As in Node: a status, a reason phrase if there is a string, and headers as an object or as an array. */
  #writeHead([status, ...rest]: any[]) {
    if (this.#begun) throw coded(ANSWERED, 'ERR_HTTP_HEADERS_SENT');
    const { response } = this;
    const code = Math.trunc(Number(status));
    if (!(code >= 100 && code <= 999)) throw new RangeError(`Invalid status code: ${status}`);
    response.statusCode = code;
    if (typeof rest[0] === 'string') {
      const reason = rest.shift();
      if (/[^\t\x20-\x7e\x80-\xff]/.test(reason)) throw coded('Invalid character in statusMessage', 'ERR_INVALID_CHAR');
      response.statusMessage = reason;
    }
    const headers = rest.find((one) => typeof one === 'object' && one !== null) ?? {};
    const lines: [string, unknown][] = Array.isArray(headers) ? pairs(headers) : Object.entries(headers);
    for (const [name] of lines) response.removeHeader(name);
    for (const [name, value] of lines) {
      if (value !== undefined || !Array.isArray(headers)) append(response, name, value);
    }
    this.#begin();
    return response;
  }

  #push(chunk: any, encoding: unknown) {
    this.#begin();
    if (chunk === null || chunk === undefined) return;
    if (typeof chunk !== 'string' && !(chunk instanceof Uint8Array)) {
      throw coded('a chunk of a response is a string, a Buffer or a Uint8Array', 'ERR_INVALID_ARG_TYPE');
    }
    const bytes =
      typeof chunk === 'string'
        ? Buffer.from(chunk, typeof encoding === 'string' ? (encoding as 'utf8') : 'utf8')
        : Buffer.from(chunk);
    this.#bytes += bytes.length;
    if (this.#bytes > MAX_BYTES) throw new RangeError(`the answer is larger than ${MAX_BYTES} bytes`);
    this.#chunks.push(bytes);
  }

  #end([chunk, ...rest]: any[]) {
    const { response } = this;
    const callback = [chunk, ...rest].find((one) => typeof one === 'function');
    this.#push(typeof chunk === 'function' ? undefined : chunk, rest[0]);
    if (callback) response.once('finish', callback);
    this.#hasEnded = true;
    this.#ended.resolve(undefined);
    this.#checkWaiting();
    return response;
  }

  /**
   * Listeners of `finish` are called after COMMIT. A handler that waits for them would wait for its own end: it is
   * still running when all else that was under way has been done.
   */
  #checkWaiting() {
    setImmediate(() => {
      const waiting = this.response.listenerCount('finish') - this.#listeners;
      if (this.#holds && this.#running && waiting > 0) this.#refused.reject(new Error(WAITS));
    });
  }

  /** Calls the handler, and returns the answer that was written, when both have ended. */
  async collect(handler: () => unknown): Promise<Outgoing> {
    const { response } = this;
    const closed = signal();
    response.once('close', closed.resolve);
    try {
      this.#running = true;
      const work = (async () => handler())().finally(() => (this.#running = false));
      work.catch(() => {});
      const returned: any = await Promise.race([work, this.#refused.promise]);
      if (!this.#hasEnded && returned !== response && Number.isInteger(returned?.status)) throw new TypeError(RETURNED);
      // The handler may have passed the response on, to a stream for example.
      if (!this.#hasEnded && !response.destroyed)
        await Promise.race([this.#ended.promise, this.#refused.promise, closed.promise]);
      if (!this.#hasEnded) throw new Error(GONE);
    } finally {
      response.removeListener('close', closed.resolve);
    }
    return this.#answer();
  }

  #answer(): Outgoing {
    const { response } = this;
    const headers = headersOf(response.getHeaders());
    const length = response.getHeader('content-length');
    const body =
      response.statusCode === 204 || response.statusCode === 304 ? Buffer.alloc(0) : Buffer.concat(this.#chunks);
    if (length !== undefined && body.length > 0 && Number(length) !== body.length) {
      throw new RangeError(`the header Content-Length says ${length}, and the answer has ${body.length} bytes`);
    }
    return { status: response.statusCode, headers, body };
  }

  /** Does not wait for the handler any more. */
  abandon() {
    this.#refused.reject(new Error(GONE));
  }

  /** Forgets what was answered so far. Headers of middleware in front of the adapter stay. */
  reset() {
    const { response } = this;
    this.#chunks = [];
    this.#bytes = 0;
    this.#begun = this.#hasEnded = false;
    this.#ended = signal();
    this.#refused = signal<never>();
    this.#listeners = response.listenerCount('finish');
    if (this.isSent) return;
    for (const name of response.getHeaderNames()) response.removeHeader(name);
    for (const [name, value] of this.#headers) response.setHeader(name, value);
    response.statusCode = this.#status;
    response.statusMessage = this.#reason;
  }

  /** Whether another part of the application, such as a middleware that limits the time, has sent an answer. */
  get isSent(): boolean {
    return !this.#holds && this.response.headersSent;
  }

  /** From now on what is written is sent. */
  release() {
    this.#holds = false;
    for (const one of this.#replaced.reverse()) one.restore();
    this.#replaced = [];
    this.response.removeListener('pipe', this.#onPipe);
    this.response.removeListener('newListener', this.#onListener);
  }
}

/** An array of names and values, or of pairs of them. */
function pairs(headers: any[]): [string, unknown][] {
  if (Array.isArray(headers[0])) return headers as [string, unknown][];
  if (headers.length % 2 !== 0) throw coded('headers as an array need a value for each name', 'ERR_INVALID_ARG_VALUE');
  return Array.from({ length: headers.length / 2 }, (_, n) => [headers[2 * n], headers[2 * n + 1]]);
}

/** Node 18 sets a header that occurs several times by an array only. */
function append(response: any, name: string, value: any) {
  const earlier = response.getHeader(name);
  response.setHeader(name, earlier === undefined ? value : [earlier, value].flat().map(String));
}
