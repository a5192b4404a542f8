// A request: its name, its payload, and the calls of the extension that begin, record and look it up.

import { ask, literal, type Database, type Result } from './database.js';
import { Again, InProgress, Interrupted, isRetryable } from './errors.js';

/** The name of a request in its session. Pass a UUID as its text, in lower case. */
export type Key = string | number | bigint;

export interface Answer<R = any> {
  status: 'succeeded' | 'failed' | 'cancelled';
  response: R;
  /** Whether it is the answer to an earlier attempt. */
  replayed: boolean;
  /** Whether the status is anything but `succeeded`. */
  failed: boolean;
}

/** The state of a request; see "The ticket" in the reference. */
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
  /** For how many seconds to try again, after a lost connection and the like: 30. Then the last error is thrown. */
  deadline?: number;
  /**
   * How many seconds an attempt waits in the database for another holder of the request: 0.2. It holds a connection.
   */
  wait?: number;
}

/** What begin has returned. */
export interface Begun extends Ticket {
  /**
   * Whether the transaction has something to commit: begin may have recorded that the request is given up, and in the
   * edition for managed services COMMIT waits until the outcome is durable.
   */
  wrote: boolean;
}

// All as text, whatever types and names of columns the application's driver is told to convert.
const TICKET = [
  'status',
  'replayed::text',
  'response::text',
  'token::text',
  'attempt::text',
  'point',
  'state::text',
  'extract(epoch FROM expires_at)::text',
  '(pg_current_xact_id_if_assigned() IS NOT NULL)::text',
];
const LEASED = `SELECT to_jsonb(ARRAY[${TICKET.join(', ')}])::text FROM idem_begin($1::text, $2::text,
  payload => $3::text::jsonb, wait => $4::text::interval, lease => $5::text::interval)`;
const LOOKUP = `SELECT to_jsonb(ARRAY[${TICKET.join(', ')}])::text FROM idem_lookup($1::text, $2::text,
  wait => $3::text::interval)`;

export const BEGIN = 'BEGIN; ';
/** What the work has done is taken back to this savepoint if its request is refused. */
export const SAVEPOINT = 'SAVEPOINT idempotence; ';
export const UNDO = 'ROLLBACK TO SAVEPOINT idempotence; ';
export const RELEASE = 'RELEASE SAVEPOINT idempotence; ';

/**
 * A key as the database knows it. Without this check, all requests without a key would be one request named undefined.
 */
export function named(key: Key): string {
  if (typeof key === 'string' || typeof key === 'bigint' || Number.isSafeInteger(key)) return String(key);
  throw new TypeError(`the key of a request is a string, a whole number or a bigint, and not ${String(key)}`);
}

/** As an argument in SQL. An interval without a unit is in seconds. */
export const text = (value: unknown) => (value === undefined || value === null ? null : String(value));
export const json = (value: unknown) =>
  value === undefined || value === null ? null : (JSON.stringify(value) ?? null);
const parsed = (value: unknown) => (value === null || value === undefined ? null : JSON.parse(String(value)));

function ticketOf(columns: (string | null)[]): Begun {
  const [status, replayed, response, token, attempt, point, state, expires, wrote] = columns as any[];
  return {
    status,
    replayed: replayed === 'true',
    response: parsed(response),
    token: token === null ? null : Number(token),
    attempt: attempt === null ? null : Number(attempt),
    point,
    state: parsed(state),
    expiresAt: expires === null ? null : new Date(Number(expires) * 1000),
    wrote: wrote === 'true',
  };
}

export function answerOf(status: Answer['status'], response: unknown, replayed: boolean): Answer {
  return { status, response, replayed, failed: status !== 'succeeded' };
}

/** A request, with the statements that begin and record it. */
export class Request {
  readonly key: string;
  readonly #name: string;
  readonly #payload: string | null;
  readonly #wait: string | null;

  constructor(
    readonly session: string,
    key: Key,
    payload: unknown,
    wait: number,
  ) {
    this.key = named(key);
    this.#name = `${literal(session)}::text, ${literal(this.key)}::text`;
    this.#payload = json(payload);
    this.#wait = text(wait);
  }

  get #arguments(): string {
    return `${this.#name}, payload => ${literal(this.#payload)}::jsonb, wait => ${literal(this.#wait)}::interval`;
  }

  /** Begins the request in the transaction. */
  begin(): string {
    return `SELECT ${TICKET.join(', ')} FROM idem_begin(${this.#arguments}); `;
  }

  /** Begins the request with a lease of so many seconds, in a transaction of its own. */
  async beginLeased(database: Database, lease: number): Promise<Ticket> {
    const values = [this.session, this.key, this.#payload, this.#wait, text(lease)];
    const [row] = await ask(database, LEASED, values);
    return this.#begun(ticketOf(JSON.parse(row![0])));
  }

  /** Begins the request, and fails unless it is new. */
  claim(): string {
    return `SELECT idem_claim(${this.#arguments}); `;
  }

  record(response: string | null, failed: boolean, ttl?: number): string {
    return (
      `SELECT idem_record(${this.#name}, ${literal(response)}::jsonb, failed => ${failed}, ` +
      `ttl => ${literal(text(ttl))}::interval); `
    );
  }

  /** The ticket in the results of statements that contain one `begin`. */
  ticket(results: Result[]): Begun {
    const {
      rows: [row],
    } = results.find(({ rows }) => rows.length > 0)!;
    return this.#begun(ticketOf(row as (string | null)[]));
  }

  #begun(ticket: Begun): Begun {
    if (ticket.status === 'in_progress') throw new InProgress(this.key, ticket.expiresAt);
    return ticket;
  }

  /** The answer of the request, unless it has none yet. A request that was interrupted is not simply executed again. */
  answered({ status, response, replayed, point, state }: Ticket): Answer | undefined {
    if (status === 'taken_over' || (status === 'started' && point !== null))
      throw new Interrupted(this.key, point, state);
    return status === 'started' ? undefined : answerOf(status as Answer['status'], response, replayed);
  }
}

export async function lookUp(database: Database, session: string, key: Key, wait: number): Promise<Ticket> {
  const [row] = await ask(database, LOOKUP, [session, named(key), text(wait)]);
  const { wrote: _, ...ticket } = ticketOf(JSON.parse(row![0]));
  return ticket;
}

/** Sends a statement of this client again after an error of the connection. */
export function asking<T>(deadline: number, ask: () => Promise<T>): Promise<T> {
  return unwrapped(
    retry(deadline, () =>
      ask().catch((error) => {
        throw isRetryable(error) && !(error instanceof InProgress) ? new Again(error) : error;
      }),
    ),
  );
}

/**
 * Makes attempts, with a growing pause in between, until one succeeds or fails for a reason that another attempt does
 * not mend. `patience`: for how many seconds, if another process holds the request.
 */
export async function retry<T>(deadline: number, attempt: () => Promise<T>, patience = deadline): Promise<T> {
  const began = performance.now();
  for (let n = 0; ; n++) {
    try {
      return await attempt();
    } catch (error) {
      const busy = error instanceof InProgress;
      const left = began + (busy ? patience : deadline) * 1000 - performance.now();
      if (!(busy || error instanceof Again) || left <= 0) throw error;
      const pause = (0.5 + Math.random() / 2) * Math.min(50 * 2 ** n, busy ? 250 : 2000);
      await new Promise((wake) => setTimeout(wake, Math.min(pause, left)));
    }
  }
}

/** With the error of the driver in place of the mark that it is worth another attempt. */
export async function unwrapped<T>(promise: Promise<T>): Promise<T> {
  try {
    return await promise;
  } catch (error) {
    throw error instanceof Again ? error.cause : error;
  }
}
