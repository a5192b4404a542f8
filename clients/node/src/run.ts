// A request: begun, worked on and recorded in one transaction, and answered after its COMMIT.

import { ask, begin, type Connection, type Database, type Row, type Transaction } from './database.js';
import { Final, InProgress, Interrupted, isRetryable, sqlstate } from './errors.js';

/** The name of a request in its session. A UUID is given as its text, in lower case. */
export type Key = string | number | bigint;

export interface Answer<R = any> {
  status: 'succeeded' | 'failed' | 'cancelled';
  response: R;
  /** Whether it is the answer to an earlier attempt. */
  replayed: boolean;
  /** Whether it is anything but `succeeded`. */
  failed: boolean;
}

/** What is known of a request; see "The ticket" in the reference. */
export interface Ticket {
  status: string;
  replayed: boolean;
  response: any;
  token: number | null;
  attempt: number | null;
  point: string | null;
  state: any;
  expiresAt: Date | null;
}

export interface Options {
  /** Seconds to try again in, after a lost connection and the like: 30. Then the last error is thrown. */
  deadline?: number;
  /** Seconds to wait at each attempt for somebody else who has the request, which holds a connection: 0.2. */
  wait?: number;
}

export interface RunOptions extends Options {
  /** Sends the work without a look at the answer to begin: fewer round trips, if the driver sends ahead. */
  claim?: boolean;
  /** Seconds that the outcome lives; by default the ttl of the session. */
  ttl?: number;
}

const TICKET = `status, replayed, response::text AS response, token::text AS token, attempt, point, state::text AS state,
  extract(epoch FROM expires_at)::text AS expires`;
const ARGUMENTS = '$1::text, $2::text, payload => $3::text::jsonb, wait => $4::text::interval';
const BEGIN = `SELECT ${TICKET} FROM idem_begin(${ARGUMENTS}, lease => $5::text::interval)`;
const CLAIM = `SELECT idem_claim(${ARGUMENTS})`;
const RECORD = `SELECT idem_record($1::text, $2::text, $3::text::jsonb, failed => $4::text::boolean,
  ttl => $5::text::interval)`;
const ONCE = `SELECT ord FROM idem_once_many($1::text, ARRAY(SELECT key FROM jsonb_array_elements_text($2::text::jsonb)
  WITH ORDINALITY k(key, place) ORDER BY place)) ORDER BY ord`;
const LOOKUP = `SELECT ${TICKET} FROM idem_lookup($1::text, $2::text, wait => $3::text::interval)`;

/** A key as the database has it. undefined and null, above all, are none: all requests without a key would be one. */
function named(key: Key): string {
  if (typeof key === 'string' || typeof key === 'bigint' || Number.isSafeInteger(key)) return String(key);
  throw new TypeError(`the key of a request is a string, a whole number or a bigint, and not ${String(key)}`);
}

/** As an argument in SQL. An interval without a unit is in seconds. */
export const text = (value: unknown) => (value === undefined || value === null ? null : String(value));
export const json = (value: unknown) => (value === undefined || value === null ? null : JSON.stringify(value));
const parsed = (value: unknown) => (value === null ? null : JSON.parse(String(value)));

function ticketOf(row: Row | undefined): Ticket {
  const { response, token, state, expires, ...rest } = row as any;
  const expiresAt = expires === null ? null : new Date(Number(expires) * 1000);
  return { ...rest, response: parsed(response), state: parsed(state), token: token === null ? null : Number(token), expiresAt };
}

export function answerOf(status: Answer['status'], response: unknown, replayed: boolean): Answer {
  return { status, response, replayed, failed: status !== 'succeeded' };
}

/** Tries again while that may help, a little later each time; for as long as `patience` if somebody else is at work. */
export async function retry<T>(deadline: number, attempt: () => Promise<T>, patience = deadline): Promise<T> {
  const began = performance.now();
  for (let n = 0; ; n++) {
    try {
      return await attempt();
    } catch (error) {
      const busy = error instanceof InProgress;
      const left = began + (busy ? patience : deadline) * 1000 - performance.now();
      if (!isRetryable(error) || left <= 0) throw error;
      const pause = (0.5 + Math.random() / 2) * Math.min(50 * 2 ** n, busy ? 250 : 2000);
      await new Promise((wake) => setTimeout(wake, Math.min(pause, left)));
    }
  }
}

/** A request, by which it is begun and recorded. */
export class Request {
  readonly key: string;
  readonly #values: (string | null)[];

  constructor(readonly session: string, key: Key, payload: unknown, wait: number) {
    this.key = named(key);
    this.#values = [session, this.key, json(payload), text(wait)];
  }

  /** Begins it, on the connection of a transaction, or with a lease of so many seconds. */
  async begin(conn: Pick<Transaction, 'query'>, lease?: number): Promise<Ticket> {
    const ticket = ticketOf((await conn.query(BEGIN, [...this.#values, text(lease)]))[0]);
    if (ticket.status === 'in_progress') throw new InProgress(this.key, ticket.expiresAt);
    return ticket;
  }

  claim(transaction: Transaction) {
    return transaction.query(CLAIM, this.#values);
  }

  record(transaction: Transaction, response: string | null, failed: boolean, ttl?: number) {
    return transaction.query(RECORD, [this.session, this.key, response, text(failed), text(ttl)]);
  }
}

/** Its answer, unless it has none yet. What somebody left in the middle is not simply executed. */
export function answered(request: Request, ticket: Ticket): Answer | undefined {
  const { status, response, replayed, point, state } = ticket;
  if (status === 'taken_over' || (status === 'started' && point !== null)) {
    throw new Interrupted(request.key, point, state);
  }
  return status === 'started' ? undefined : answerOf(status as Answer['status'], response, replayed);
}

/** Waits for all, and throws the first error, in their order. */
async function all(...sent: unknown[]): Promise<void> {
  for (const result of await Promise.allSettled(sent)) if (result.status === 'rejected') throw result.reason;
}

/** Begins a request, calls `work(conn)` if it is new, records what that returns, and commits. */
export function run<D extends Database, R = any>(
  database: D, session: string, key: Key, payload: unknown, work: (conn: Connection<D>) => R | Promise<R>, options: RunOptions = {},
): Promise<Answer<R>> {
  const { deadline = 30, wait = 0.2, claim = false, ttl } = options;
  const request = new Request(session, key, payload, wait);

  async function attempt(claims: boolean): Promise<Answer> {
    const transaction = await begin(database);
    let refusal: unknown;
    let asked: Promise<unknown> | undefined;
    try {
      if (claims) {
        asked = request.claim(transaction);
        asked.catch((error) => (refusal = error));
      } else {
        const answer = answered(request, await request.begin(transaction));
        if (answer) await transaction.commit(); // begin may have recorded that the request is given up
        if (answer) return answer;
      }
      const outcome = await perform(work, transaction.conn).catch(async (error) => {
        await asked; // of whose refusal the other error is a consequence
        throw error;
      });
      const response = json(outcome.response);
      await all(asked, request.record(transaction, response, outcome.failed, ttl), transaction.commit());
      return answerOf(outcome.failed ? 'failed' : 'succeeded', parsed(response), false);
    } catch (error) {
      await transaction.rollback();
      // What a claim refuses, a begin explains.
      if (refusal && /^(ID011|55P03|55000)$/.test(sqlstate(refusal) ?? '')) return attempt(false);
      throw error;
    }
  }

  return retry(deadline, () => attempt(claim));
}

async function perform(work: (conn: any) => unknown, conn: unknown): Promise<{ response: unknown; failed: boolean }> {
  try {
    return { response: await work(conn), failed: false };
  } catch (error) {
    if (error instanceof Final) return { response: error.response, failed: true };
    throw error;
  }
}

/** Tells what is known of a request, and does not begin it. */
export function lookup(database: Database, session: string, key: Key, options: Options = {}): Promise<Ticket> {
  const { deadline = 30, wait = 0 } = options;
  return retry(deadline, async () => ticketOf((await ask(database, LOOKUP, [session, named(key), text(wait)]))[0]));
}

/** Those of the keys that an inbox has not seen before, within the transaction of `conn`. */
export async function once<K extends Key>(conn: unknown, session: string, keys: readonly K[]): Promise<K[]> {
  const rows = await ask(conn, ONCE, [session, JSON.stringify(keys.map(named))]);
  return rows.map((row) => keys[Number(row['ord']) - 1]!);
}
