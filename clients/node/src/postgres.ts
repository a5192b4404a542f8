// A connection of postgres.js. `sql.begin` would wait for BEGIN alone, and end the transaction itself; so the
// connection is reserved. A reserved connection does not report its loss: the driver would write to a socket that is
// gone, or to the session of another request. Therefore the first statement asks, by the option that `sql.begin` uses,
// for the driver's connection.

import { readFile } from 'node:fs/promises';
import { type Link, type Result, type Watch } from './database.js';

/** The driver's own connection, as far as it is used here. */
interface Own {
  onclose: ((error: Error) => void) | null;
  /**
   * With `release` false, the driver takes the connection back as soon as the server reports that no transaction is
   * open.
   */
  reserved: { release: boolean } | null;
  terminate(): void;
}

interface Query extends Promise<any> {
  active: boolean;
  handler: ((query: Query) => unknown) & { debug?: unknown };
  execute(): Query;
  cancel(): void;
  reject(error: unknown): void;
  values(): Query;
}

const OWNED = 'the connection belongs to the transaction of this request, which ends when the handler has returned';
/** The driver gives one result for one statement, and an array of results for several. */
const statements = (result: any): any[] =>
  result?.command === undefined && Array.isArray(result) ? result : [result ?? {}];
const isQuery = (value: any): value is Query =>
  typeof value?.execute === 'function' && typeof value.handler === 'function';

export class PostgresLink implements Link {
  readonly conn: any;
  lost: Error | undefined;
  #own: Own | undefined;
  #reservation: unknown;
  readonly #onLost = (error: Error) => void (this.lost ??= error);
  readonly #running = new Set<Query>();

  static async connect(database: any, watch: Watch): Promise<PostgresLink> {
    return new PostgresLink(await database.reserve(), watch);
  }

  constructor(
    private readonly sql: any,
    watch: Watch,
  ) {
    this.conn = lent(sql, watch, this.#running);
  }

  async send(sql: string): Promise<Result[]> {
    return this.#send(sql);
  }

  async sendLast(sql: string): Promise<Result[]> {
    if (this.#returned) return [];
    if (this.#own?.reserved && !this.lost) this.#own.reserved.release = false;
    return this.#send(sql);
  }

  /** Whether the driver has taken the connection back. Then another request may use it. */
  get #returned(): boolean {
    return this.#own !== undefined && this.#own.reserved !== this.#reservation;
  }

  async #send(text: string): Promise<Result[]> {
    // What is sent without waiting arrives in the same message of the network.
    const taken = this.#own ? undefined : this.#take();
    if (this.lost) throw this.lost;
    if (this.#returned) throw new Error('the connection was given back to its pool');
    const query: Query = this.sql.unsafe(text).values();
    this.#running.add(query);
    try {
      const [results] = await Promise.all([query.execute(), taken]);
      return statements(results).map((rows) => ({ command: rows.command, rows: [...rows] }));
    } finally {
      this.#running.delete(query);
    }
  }

  /** Learns which connection of the driver this is, with an empty statement. */
  async #take() {
    await this.sql
      .unsafe('', [], {
        onexecute: (own: Own) => {
          this.#own = own;
          this.#reservation = own.reserved;
          own.onclose = this.#onLost;
          return true;
        },
      })
      .execute();
    if (!this.#own)
      throw new Error('this version of postgres.js is not supported: it does not report the loss of a connection');
  }

  /** The driver takes the connection back by itself at the end of the transaction. */
  release() {
    if (!this.#own) return this.sql.release();
    if (this.#own.onclose === this.#onLost) this.#own.onclose = null;
  }

  close() {
    if (!this.#own) return this.sql.release();
    if (this.lost || this.#returned) return;
    this.lost = new Error('the connection was closed');
    for (const query of this.#running) if (query.active) query.cancel();
    const own = this.#own;
    // The request to cancel needs a connection of its own, and a moment.
    setImmediate(() => own.terminate());
  }
}

/** Lends `sql` to the work. A query is sent when it is awaited: so whether it still may is checked when it is sent. */
function lent(sql: any, watch: Watch, running: Set<Query>): any {
  let savepoints = 0;

  function watched(query: Query): Query {
    const { handler } = query;
    const send = (sent: Query) => {
      const refusal = watch.refusal();
      if (refusal) return sent.reject(refusal);
      running.add(sent);
      Promise.prototype.then.call(
        sent,
        (result: any) => {
          running.delete(sent);
          for (const { command } of statements(result)) watch.succeeded(command);
        },
        (error: unknown) => {
          running.delete(sent);
          watch.failed(error);
        },
      );
      return handler(sent);
    };
    query.handler = Object.assign(send, { debug: handler.debug });
    return query;
  }

  async function savepoint(...rest: any[]): Promise<unknown> {
    const work = rest.at(-1);
    const name = `idempotence_${++savepoints}`;
    await conn.unsafe(`SAVEPOINT ${name}`);
    let failed: unknown;
    const inner = lent(
      sql,
      {
        ...bound(watch),
        failed: (error) => {
          failed ??= error;
          watch.failed(error);
        },
      },
      running,
    );
    try {
      const made = work(inner);
      const result = await (Array.isArray(made) ? Promise.all(made) : made);
      // As in the driver: an error that the function has caught has spoilt the savepoint nevertheless.
      if (failed) throw failed;
      return result;
    } catch (error) {
      await conn.unsafe(`ROLLBACK TO SAVEPOINT ${name}`);
      throw error;
    }
  }

  /** The driver reads the file first, and would send its statements whenever that is done. */
  const file = (path: any, ...rest: any[]) => readFile(path, 'utf8').then((text) => conn.unsafe(text, ...rest));

  const released = () => {
    throw new Error(OWNED);
  };

  const conn: any = new Proxy(sql, {
    apply(target, _this, values) {
      const result = target(...values);
      return isQuery(result) ? watched(result) : result;
    },
    get(target, name) {
      if (name === 'savepoint') return savepoint;
      if (name === 'file') return file;
      if (name === 'release') return released;
      const value = target[name];
      if (typeof value !== 'function' || name === 'constructor') return value;
      return (...values: unknown[]) => {
        const refusal = name === 'notify' && watch.refusal();
        if (refusal) return Promise.reject(refusal);
        const result = value.apply(target, values);
        return isQuery(result) ? watched(result) : result;
      };
    },
  });
  return conn;
}

const bound = (watch: Watch): Watch => ({
  refusal: () => watch.refusal(),
  failed: (error) => watch.failed(error),
  succeeded: (command) => watch.succeeded(command),
});
