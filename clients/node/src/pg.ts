// A connection of a pool of pg.

import { delivered, ignore, type Link, type Result, type Watch } from './database.js';

const OWNED = 'the connection belongs to the transaction of this request, which ends when the handler has returned';
// Without effect on the connection, so that they may be used at any time.
const HARMLESS = /^(escape(Literal|Identifier)|off|removeListener|toString)$/;

export class PgLink implements Link {
  readonly conn: any;
  lost: Error | undefined;
  readonly #onLost = (error?: Error) => void (this.lost ??= error ?? new Error('Connection terminated unexpectedly'));

  static async connect(pool: any, watch: Watch): Promise<PgLink> {
    return new PgLink(await pool.connect(), watch);
  }

  constructor(
    private readonly client: any,
    watch: Watch,
  ) {
    // Without a listener, an error between two statements would end the process.
    client.on('error', this.#onLost);
    client.on('end', this.#onLost);
    this.conn = lent(client, watch);
  }

  async send(sql: string): Promise<Result[]> {
    const results = await this.client.query({ text: sql, rowMode: 'array' });
    return Array.isArray(results) ? results : [results];
  }

  sendLast(sql: string): Promise<Result[]> {
    return this.send(sql);
  }

  release() {
    this.#leave();
    this.client.release(this.lost);
  }

  close() {
    this.lost ??= new Error('the connection was closed');
    // The driver reports the end of what it was doing by an error that no caller waits for any more.
    this.client.on('error', ignore);
    this.#leave();
    void delivered(cancel(this.client)).then(() => this.client.release(this.lost));
  }

  #leave() {
    this.client.removeListener('error', this.#onLost);
    this.client.removeListener('end', this.#onLost);
  }
}

/**
 * Asks the server to cancel the statement that this client waits for. Closing the connection alone does not end it.
 * The server closes the connection of the request when it has dealt with it.
 */
async function cancel(client: any): Promise<void> {
  if (!client.processID) return;
  const wire = new client.connection.constructor({ ssl: client.ssl });
  const request = () => wire.cancel(client.processID, client.secretKey);
  const dealtWith = new Promise((resolve) => wire.once('end', resolve).on('error', resolve));
  wire.once('connect', () => (client.ssl ? wire.requestSsl() : request()));
  wire.once('sslconnect', request);
  if (client.host?.startsWith('/')) wire.connect(`${client.host}/.s.PGSQL.${client.port}`);
  else wire.connect(client.port, client.host);
  setTimeout(() => wire.stream.destroy(), 5000).unref();
  await dealtWith;
}

/**
 * Lends the client to the work. A call after the transaction has ended is refused, as the pool may have lent the
 * connection to another request.
 */
function lent(client: any, watch: Watch): any {
  function called(name: string, values: unknown[]): unknown {
    if (HARMLESS.test(name)) return client[name](...values);
    if (name === 'release' || name === 'end') throw new Error(OWNED);
    const refusal = watch.refusal();
    if (refusal) return refused(refusal, name, values);
    const last = values.length - 1;
    const callback = values[last];
    if (name === 'query' && typeof callback === 'function') {
      values[last] = (error: unknown, result: any) => {
        noted(error, result);
        callback(error, result);
      };
    }
    const result = client[name](...values);
    if (typeof result?.then === 'function')
      result.then(
        (found: any) => noted(undefined, found),
        (error: unknown) => noted(error),
      );
    return result;
  }

  function noted(error: unknown, result?: any) {
    if (error) watch.failed(error);
    else for (const { command } of [result].flat().filter(Boolean)) watch.succeeded(command);
  }

  return new Proxy(client, {
    get(target, name) {
      const value = target[name];
      if (typeof value !== 'function' || name === 'constructor') return value;
      return (...values: unknown[]) => called(String(name), values);
    },
  });
}

/** As errors of the driver arrive: by the callback, or by the promise. */
function refused(refusal: Error, name: string, values: unknown[]): unknown {
  const callback = values.at(-1);
  if (name !== 'query') throw refusal;
  if (typeof callback === 'function') return void process.nextTick(callback, refusal);
  const rejected = Promise.reject(refusal);
  // If the statement is not awaited, its refusal must not end the process.
  rejected.catch(ignore);
  return rejected;
}
