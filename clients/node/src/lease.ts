// A request whose effect is elsewhere: the claim is committed before the work, for the length of a lease.

import { ask, type Database } from './database.js';
import { sqlstate } from './errors.js';
import { answerOf, answered, json, Request, retry, text, type Answer, type Key, type Options, type Ticket } from './run.js';

export interface LeaseOptions extends Options {
  /** Seconds that the claim lasts unless it is extended, which is done in the background: 30. */
  lease?: number;
}

/** How long, in seconds, a lease is, to try again in, and to wait for somebody else. */
export interface Times {
  length: number;
  deadline: number;
  patience: number;
}

/** What the holder of a lease works with. */
export class Lease {
  readonly token: number;
  readonly attempt: number;
  /** Whether somebody stopped in the middle: look first what has happened. */
  readonly takenOver: boolean;
  /** The last checkpoint. */
  readonly point: string | null;
  readonly state: any;
  /** Aborted with ID005 as its reason when the request is somebody else's. */
  readonly signal: AbortSignal;
  /** What was recorded. */
  answer: Answer | undefined;
  readonly #lost = new AbortController();
  #timer: NodeJS.Timeout | undefined;
  // Once the request is done, its token holds it no more.
  #done = false;

  constructor(private readonly database: Database, private readonly request: Request, ticket: Ticket, private readonly times: Times) {
    this.token = ticket.token!;
    this.attempt = ticket.attempt!;
    this.takenOver = ticket.status === 'taken_over';
    this.point = ticket.point;
    this.state = ticket.state;
    this.signal = this.#lost.signal;
    this.#beat();
  }

  #beat() {
    this.#timer = setTimeout(() => {
      // An error of another kind may be gone at the next beat.
      this.extend().catch(() => {}).finally(() => this.#done || this.signal.aborted || this.#beat());
    }, (this.times.length * 1000) / 3).unref();
  }

  async #call(call: string, values: unknown[], conn?: unknown): Promise<void> {
    const { session, key } = this.request;
    const sent = () => ask(conn ?? this.database, `SELECT ${call}`, [session, key, String(this.token), ...values]);
    try {
      await (conn ? sent() : retry(this.times.deadline, sent));
    } catch (error) {
      if (sqlstate(error) === 'ID005' && !this.#done) this.#lost.abort(error);
      throw error;
    }
  }

  async #complete(call: string, values: unknown[], conn?: unknown) {
    // A beat may arrive after it, and must not take it for a loss.
    this.#done = true;
    try {
      await this.#call(call, values, conn);
    } catch (error) {
      this.#done = this.answer !== undefined;
      if (sqlstate(error) === 'ID005') this.#lost.abort(error);
      throw error;
    }
  }

  /** Lets the claim last for its length from now on. */
  extend(): Promise<void> {
    return this.#call('idem_extend($1::text, $2::text, $3::text::bigint, $4::text::interval)', [text(this.times.length)]);
  }

  /** Saves how far the work has got. */
  checkpoint(point: string, state?: unknown): Promise<void> {
    const call = 'idem_checkpoint($1::text, $2::text, $4::text, $5::text::jsonb, token => $3::text::bigint)';
    return this.#call(call, [point, json(state)]);
  }

  /** Records the outcome; given the connection of a transaction of yours, in that. */
  async record(response?: unknown, { failed = false, conn }: { failed?: boolean; conn?: unknown } = {}): Promise<void> {
    const recorded = json(response);
    const call = 'idem_record($1::text, $2::text, $4::text::jsonb, failed => $5::text::boolean, token => $3::text::bigint)';
    await this.#complete(call, [recorded, text(failed)], conn);
    this.answer ??= answerOf(failed ? 'failed' : 'succeeded', recorded && JSON.parse(recorded), false);
  }

  /** Gives the request up. Only for what has had no effect: the next begin is not told to look. */
  release(): Promise<void> {
    return this.#complete('idem_release($1::text, $2::text, token => $3::text::bigint)', []);
  }

  stop() {
    this.#done = true;
    clearTimeout(this.#timer);
  }
}

/** Begins a request with a lease, and calls `work(lease)`, which records what it has done. Without a record, after an error
 *  too, the lease is left to run out: whoever begins then is told to look. */
export function lease(
  database: Database, session: string, key: Key, payload: unknown, work: (lease: Lease) => unknown, options: LeaseOptions = {},
): Promise<Answer | undefined> {
  const { deadline = 30, wait = 0.2, lease: length = 30 } = options;
  return hold(database, new Request(session, key, payload, wait), work, { length, deadline, patience: deadline });
}

export async function hold(database: Database, request: Request, work: (lease: Lease) => unknown, times: Times) {
  const conn = { query: (sql: string, values: unknown[]) => ask(database, sql, values) };
  const ticket = await retry(times.deadline, () => request.begin(conn, times.length), times.patience);
  if (ticket.token === null) return answered(request, ticket);
  const held = new Lease(database, request, ticket, times);
  try {
    await work(held);
  } catch (error) {
    held.signal.throwIfAborted();
    throw error;
  } finally {
    held.stop();
  }
  if (!held.answer) held.signal.throwIfAborted();
  return held.answer;
}
