// The two drivers behind one interface. A link is one connection that is taken out of its pool for one transaction.

import { PgLink } from './pg.js';
import { PostgresLink } from './postgres.js';

/** A pool of pg (`new pg.Pool(…)`), or postgres.js (`postgres(…)`). */
export type Database =
  | { connect: (...rest: any[]) => any; query: (...rest: any[]) => any; totalCount: number }
  | { begin: (...rest: any[]) => any; unsafe: (...rest: any[]) => any };

/** The connection that the work is given: the client of pg, or the `sql` of postgres.js, of the transaction. */
export type Connection<D> = D extends {
  begin: { (work: (sql: infer C) => any): any; (options: string, work: any): any };
}
  ? C
  : D extends { connect: { (): Promise<infer C>; (...rest: any[]): any } }
    ? C
    : any;

/**
 * The result of a statement: its command tag, and its rows as arrays. postgres.js makes one result of a statement that
 * returns rows and of those behind it that return none, with the tag of the last one.
 */
export interface Result {
  command: string;
  rows: unknown[][];
}

/** What a link asks its transaction about each statement of the work. */
export interface Watch {
  /** Why the connection must not be used: the transaction has ended, or the connection was lost. */
  refusal(): Error | undefined;
  /** A statement of the work has failed, or has succeeded with this command tag. */
  failed(error: unknown): void;
  succeeded(command: string): void;
}

export interface Link {
  /** What the work is given. */
  readonly conn: any;
  /** The error with which the connection was lost. */
  readonly lost: Error | undefined;
  /** Sends statements in one message, so that they take one round trip, and none is executed after one that failed. */
  send(sql: string): Promise<Result[]>;
  /** Sends the last statements of the transaction, after which the connection may go back to its pool. */
  sendLast(sql: string): Promise<Result[]>;
  /** Gives the connection back to its pool, after its transaction has ended. */
  release(): void;
  /** Cancels the statement that is being executed, and closes the connection. */
  close(): void;
}

export function connect(database: Database, watch: Watch): Promise<Link> {
  return 'begin' in database ? PostgresLink.connect(database, watch) : PgLink.connect(database, watch);
}

/**
 * Executes one statement, in a transaction of its own or, with the connection of a transaction, in that one. Its rows
 * are arrays: an application may tell its driver to rename columns.
 */
export async function ask(conn: any, text: string, values: readonly unknown[] = []): Promise<any[][]> {
  if (typeof conn === 'function') return conn.unsafe(text, values, { prepare: true }).values();
  return (await conn.query({ text, values, rowMode: 'array' })).rows;
}

/** A string as a literal of SQL, whatever standard_conforming_strings says. */
export function literal(value: string | null): string {
  if (value === null) return 'NULL';
  // The protocol ends a statement at this character, and no text of PostgreSQL contains it.
  if (value.includes('\0')) throw new RangeError('a text must not contain the character 0');
  return `E'${value.replace(/[\\']/g, '$&$&')}'`;
}

export const ignore = () => {};

/**
 * Waits until a request to cancel a statement has been delivered, but not longer than a second. The connection that
 * executes the statement must stay open until then: PgBouncer drops requests to cancel for clients that have gone.
 */
export async function delivered(cancelled: Promise<unknown>): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<void>((resolve) => (timer = setTimeout(resolve, 1000)));
  await Promise.race([cancelled.catch(ignore), late]).finally(() => clearTimeout(timer));
}

/** A promise that is settled from outside. */
export function signal<T = unknown>() {
  let settle!: [resolve: (value: T) => void, reject: (error: unknown) => void];
  const promise = new Promise<T>((...both) => (settle = both));
  promise.catch(ignore);
  return { promise, resolve: settle[0], reject: settle[1] };
}
