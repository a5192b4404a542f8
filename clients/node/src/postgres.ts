// A connection of postgres.js. `sql.begin` would wait for BEGIN alone and end the transaction itself, and `sql.reserve`
// never returns if another connection is lost meanwhile. So a connection is taken as `sql.begin` takes it: by the
// option `onexecute` of a query, which names the driver's own connection.

import { readFile } from 'node:fs/promises';
import { delivered, type Link, type Result, type Watch } from './database.js';

/** The driver's own connection, as far as it is used here. */
interface Own {
  /** Sends a query. False: no other one may be sent until the server is ready again. */
  execute(query: Query): boolean | undefined;
  terminate(): void;
  onclose: ((error: Error) => void) | null;
  /**
   * Called when the server is ready. While it is there, no other query gets the connection. Without `release`, the
   * driver takes the connection back as soon as the server reports that no transaction is open.
   */
  reserved: ((() => void) & { release: boolean }) | null;
}

interface Query extends Promise<any> {
  active: boolean;
  handler: ((query: Query) => unknown) & { debug?: unknown };
  execute(): Query;
  /** Asks the server to cancel it, on a connection for that. It is settled when that connection has been closed. */
  canceller: ((query: Query) => Promise<void>) | null;
  reject(error: unknown): void;
  values(): Query;
}

const OWNED = 'the connection belongs to the transaction of this request, which ends when the handler has returned';
const UNSUPPORTED = 'this version of postgres.js is not supported: it does not name the connection of a query';
// Of the whole pool, and so not for the work of one transaction.
const NOT_LENT = /^(begin|reserve|end|close|listen|subscribe|largeObject|END|CLOSE)$/;

/** The driver gives one result for one statement, and an array of results for several. */
const statements = (result: any): any[] =>
  result?.command === undefined && Array.isArray(result) ? result : [result ?? {}];
const isQuery = (value: any): value is Query =>
  typeof value?.execute === 'function' && typeof value.handler === 'function';

/** A connection of the driver while it belongs to one transaction. */
class Taken {
  lost: Error | undefined;
  readonly running = new Set<Query>();
  readonly #reservation: Own['reserved'];
  readonly #waiting: Query[] = [];
  #full = false;

  constructor(readonly own: Own) {
    own.onclose = this.#onclose;
    this.#reservation = own.reserved = Object.assign(() => this.#ready(), { release: true });
  }

  readonly #onclose = (error: Error) => {
    this.lost ??= error;
    for (const query of this.#waiting.splice(0)) query.reject(error);
  };

  /** Whether the driver has taken the connection back. Then another request may use it. */
  get returned(): boolean {
    return this.own.reserved !== this.#reservation;
  }

  execute(query: Query) {
    if (this.lost || this.returned) return query.reject(this.lost ?? new Error('the connection was given back'));
    if (this.#full) this.#waiting.push(query);
    else this.#full = !this.own.execute(query);
  }

  #ready() {
    this.#full = false;
    while (this.#waiting.length > 0 && !this.#full) this.#full = !this.own.execute(this.#waiting.shift()!);
  }

  /** Lets the driver take the connection back at the end of the transaction. */
  giveBack() {
    if (this.#reservation && !this.returned) this.#reservation.release = false;
  }

  leave() {
    if (this.own.onclose === this.#onclose) this.own.onclose = null;
  }
}

/** Takes a connection out of the pool, with an empty statement. It is known before the statement is sent. */
function take(sql: any): Promise<Taken> {
  return new Promise((resolve, reject) => {
    const onexecute = (own: Own) => {
      resolve(new Taken(own));
      return false;
    };
    sql
      .unsafe('', [], { onexecute })
      .execute()
      .then(() => reject(new Error(UNSUPPORTED)), reject);
  });
}

export class PostgresLink implements Link {
  readonly conn: any;

  static async connect(database: any, watch: Watch): Promise<PostgresLink> {
    return new PostgresLink(database, await take(database), watch);
  }

  constructor(
    private readonly sql: any,
    private readonly taken: Taken,
    watch: Watch,
  ) {
    this.conn = lent(sql, watch, taken);
  }

  get lost(): Error | undefined {
    return this.taken.lost;
  }

  async send(text: string): Promise<Result[]> {
    const { taken } = this;
    const query: Query = this.sql.unsafe(text).values();
    query.handler = Object.assign((sent: Query) => taken.execute(sent), { debug: query.handler.debug });
    taken.running.add(query);
    try {
      const results = await query.execute();
      return statements(results).map((rows) => ({ command: rows.command, rows: [...rows] }));
    } finally {
      taken.running.delete(query);
    }
  }

  async sendLast(text: string): Promise<Result[]> {
    // The work has ended the transaction, and the driver has taken the connection back after that.
    if (this.taken.returned && !this.lost) return [];
    this.taken.giveBack();
    return this.send(text);
  }

  release() {
    this.taken.leave();
  }

  close() {
    const { taken } = this;
    if (taken.lost || taken.returned) return;
    taken.lost = new Error('the connection was closed');
    const active = [...taken.running].filter((query) => query.active);
    void delivered(Promise.all(active.map((query) => query.canceller?.(query)))).then(() => taken.own.terminate());
  }
}

/** Lends `sql` to the work. A query is sent when it is awaited: so it is checked then whether it still may be. */
function lent(sql: any, watch: Watch, taken: Taken): any {
  let savepoints = 0;

  function watched(query: Query): Query {
    const send = (sent: Query) => {
      const refusal = watch.refusal();
      if (refusal) return sent.reject(refusal);
      taken.running.add(sent);
      Promise.prototype.then.call(
        sent,
        (result: any) => {
          taken.running.delete(sent);
          for (const { command } of statements(result)) watch.succeeded(command);
        },
        (error: unknown) => {
          taken.running.delete(sent);
          watch.failed(error);
        },
      );
      return taken.execute(sent);
    };
    query.handler = Object.assign(send, { debug: query.handler.debug });
    return query;
  }

  async function savepoint(...rest: any[]): Promise<unknown> {
    const work = rest.at(-1);
    const name = `idempotence_${++savepoints}`;
    await conn.unsafe(`SAVEPOINT ${name}`);
    let failed: unknown;
    const inner: Watch = {
      refusal: () => watch.refusal(),
      succeeded: (command) => watch.succeeded(command),
      failed: (error) => {
        failed ??= error;
        watch.failed(error);
      },
    };
    try {
      const made = work(lent(sql, inner, taken));
      const result = await (Array.isArray(made) ? Promise.all(made) : made);
      // As in the driver: an error that the function has caught has spoilt the savepoint nevertheless.
      if (failed) throw failed;
      return result;
    } catch (error) {
      await conn.unsafe(`ROLLBACK TO SAVEPOINT ${name}`);
      throw error;
    }
  }

  const own: Record<string, unknown> = {
    savepoint,
    /** The driver would read the file first, and send its statements whenever that is done. */
    file: (path: any, ...rest: any[]) => readFile(path, 'utf8').then((text) => conn.unsafe(text, ...rest)),
    /** The driver would send it on any connection of the pool. */
    notify: async (channel: string, payload: unknown) => conn`SELECT pg_notify(${channel}, ${`${payload}`})`,
    release() {
      throw new Error(OWNED);
    },
  };

  const conn: any = new Proxy(sql, {
    apply(target, _this, values) {
      const result = target(...values);
      return isQuery(result) ? watched(result) : result;
    },
    get(target, name) {
      if (Object.hasOwn(own, name)) return own[String(name)];
      if (NOT_LENT.test(String(name))) return undefined;
      const value = target[name];
      if (typeof value !== 'function' || name === 'constructor') return value;
      return (...values: unknown[]) => {
        const result = value.apply(target, values);
        return isQuery(result) ? watched(result) : result;
      };
    },
  });
  return conn;
}
