// One face for the drivers: a pool of pg, or postgres.js. A transaction has a connection, which goes back to its pool when
// the transaction ends, however it ends; one that is in doubt is closed instead.

export type Row = Record<string, unknown>;
type Values = readonly unknown[];

/** A pool of pg (`new pg.Pool(…)`), or postgres.js (`postgres(…)`). */
export type Database =
  | { connect: (...rest: any[]) => any; query: (...rest: any[]) => any; totalCount: number }
  | { begin: (...rest: any[]) => any; unsafe: (...rest: any[]) => any };

/** What the work gets: the client of pg, or the `sql` of postgres.js, of the transaction. */
export type Connection<D> =
  D extends { begin: { (work: (sql: infer C) => any): any; (options: string, work: any): any } } ? C
  : D extends { connect: { (): Promise<infer C>; (...rest: any[]): any } } ? C
  : any;

export interface Transaction {
  /** Lent to the work until the transaction ends. */
  readonly conn: any;
  query(text: string, values?: Values): Promise<Row[]>;
  /** Lends `conn` out under a savepoint, which `leave` leaves and `undo` goes back to. */
  guard(): Promise<unknown>;
  leave(): Promise<unknown>;
  undo(): Promise<unknown>;
  commit(): Promise<unknown>;
  /** Ends it, whatever has happened. Never fails. */
  rollback(): Promise<unknown>;
}

const ignore = () => {};

export function begin(database: Database): Promise<Transaction> {
  return 'begin' in database ? PostgresTransaction.begin(database) : PgTransaction.begin(database);
}

/** Runs one statement, a transaction of its own; or, given the connection of a transaction, a part of that. */
export async function ask(conn: any, text: string, values: Values = []): Promise<Row[]> {
  return typeof conn === 'function' ? conn.unsafe(text, values, { prepare: true }) : (await conn.query(text, values)).rows;
}

const OVER = new Error('the transaction is over, so its connection cannot be used any more: answer after all work is done');
const OURS = new Error('the connection belongs to the transaction, which ends when the work has returned');

/** Lends a connection: what ends a transaction, or comes after its end, is refused, for the pool has given the connection
 *  to somebody else by then. */
function lend(conn: any, refusal: (method: string) => unknown, called: (result: any) => unknown): any {
  const checked = (method: string, call: () => unknown) => {
    const why = refusal(method);
    if (why === OURS) throw why;
    // It comes as errors of the driver do, with the place of the call.
    if (why) return Promise.reject(why === OVER ? new Error(OVER.message) : why);
    const result = call();
    called(result);
    return result;
  };
  return new Proxy(conn, {
    apply: (target, _this, values) => checked('', () => target(...values)),
    get(target, name) {
      const value = target[name];
      if (typeof value !== 'function' || name === 'constructor') return value;
      return (...values: unknown[]) => checked(String(name), () => value.apply(target, values));
    },
  });
}

class PgTransaction implements Transaction {
  readonly conn: any;
  #over = false;
  // The first error, of which 25P02 is a consequence.
  #first: any;

  static async begin(pool: any): Promise<Transaction> {
    const transaction = new PgTransaction(await pool.connect());
    try {
      await transaction.query('BEGIN');
      return transaction;
    } catch (error) {
      await transaction.rollback();
      throw error;
    }
  }

  constructor(private readonly client: any) {
    // An error that comes between two statements, and nobody listens to, would end the process.
    client.on('error', ignore);
    const refusal = (method: string) => (this.#over ? OVER : /^(release|end)$/.test(method) && OURS);
    this.conn = lend(client, refusal, (result) => this.#note(result));
  }

  // Work may send statements without waiting for each, as in a claim: their errors come out at the record.
  #note(result: any) {
    result?.catch?.((error: unknown) => (this.#first ??= error));
    return result;
  }

  async query(text: string, values: Values = []) {
    try {
      return (await this.#note(this.client.query(text, values))).rows;
    } catch (error: any) {
      throw error?.code === '25P02' && this.#first ? this.#first : error;
    }
  }

  guard() {
    return this.query('SAVEPOINT idempotence');
  }

  async leave() {}

  undo() {
    return this.query('ROLLBACK TO SAVEPOINT idempotence').then(() => (this.#first = undefined));
  }

  async commit() {
    const { command } = await this.client.query('COMMIT');
    this.#release();
    // What COMMIT answers where the transaction was aborted is no error.
    if (command !== 'COMMIT') throw this.#first ?? new Error('the transaction was aborted, and COMMIT rolled it back');
  }

  async rollback() {
    if (!this.#over) await this.client.query('ROLLBACK').then(() => this.#release(), (error: unknown) => this.#release(error));
  }

  #release(error?: unknown) {
    this.#over = true;
    this.client.removeListener('error', ignore);
    this.client.release(error);
  }
}

/** A promise that is settled by hand. */
export function signal<T = unknown>() {
  let settle!: [resolve: (value: T) => void, reject: (error: unknown) => void];
  const promise = new Promise<T>((...both) => (settle = both));
  promise.catch(ignore);
  return { promise, resolve: settle[0], reject: settle[1] };
}

/** postgres.js ends a transaction, and leaves a savepoint, when a function of ours does. So such a function waits for that. */
class PostgresTransaction implements Transaction {
  conn: any;
  // Why the connection cannot be used any more: the transaction has ended, or the connection was lost.
  #over: unknown;
  #sql: any;
  #guarded: { end: ReturnType<typeof signal>; ended: Promise<unknown> } | undefined;
  readonly #end = signal();
  #ended!: Promise<unknown>;

  static begin(sql: any): Promise<Transaction> {
    const transaction = new PostgresTransaction();
    const started = signal<Transaction>();
    transaction.#ended = sql.begin((tx: any) => {
      transaction.#sql = tx;
      transaction.#lend(tx);
      started.resolve(transaction);
      return transaction.#end.promise;
    });
    const over = (error: unknown) => started.reject((transaction.#over = error));
    transaction.#ended.then(() => over(OVER), over);
    return started.promise;
  }

  #lend(sql: any) {
    this.conn = lend(sql, () => this.#over, ignore);
  }

  async query(text: string, values: Values = []) {
    // After the loss of the connection the driver would write to a socket that is not there.
    if (this.#over) throw this.#over;
    try {
      return await this.#sql.unsafe(text, values, { prepare: true });
    } catch (error: any) {
      if (error.code !== '25P02') throw error;
      // The driver knows of which error it is the consequence.
      this.#end.reject(error);
      return (await this.#ended) as never;
    }
  }

  guard() {
    const end = signal();
    const lent = signal();
    const ended = this.#sql.savepoint((sql: any) => {
      this.#lend(sql);
      lent.resolve(undefined);
      return end.promise;
    });
    ended.catch(lent.reject);
    this.#guarded = { end, ended };
    return lent.promise;
  }

  async leave() {
    const guarded = this.#guarded;
    this.#guarded = undefined;
    guarded?.end.resolve(undefined);
    await guarded?.ended;
  }

  async undo() {
    const guarded = this.#guarded;
    this.#guarded = undefined;
    guarded?.end.reject(OVER);
    await guarded?.ended.catch(ignore);
  }

  commit() {
    this.#end.resolve(undefined);
    return this.#ended;
  }

  async rollback() {
    // So that the driver can tell first that the connection is lost.
    await new Promise(setImmediate);
    if (!this.#over) {
      await this.undo();
      this.#end.reject(OVER);
    }
    await this.#ended.catch(ignore);
  }
}
