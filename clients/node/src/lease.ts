// A request whose effect is outside of the database: the claim is committed before the work, for the length of a lease.

import { ask, type Database } from './database.js';
import { Again, InProgress, isRetryable, sqlstate, Unrecorded } from './errors.js';
import { checkDatabase, checkFunction, checkOptions } from './options.js';
import {
  answerOf,
  asking,
  json,
  Request,
  retry,
  text,
  unwrapped,
  type Answer,
  type Key,
  type Options,
  type Ticket,
} from './request.js';

export interface LeaseOptions extends Options {
  /** How many seconds the claim lasts. A heartbeat extends it until the work has ended. Default: 30. */
  lease?: number;
}

/** In seconds: the length of a lease, for how long to try again, and for how long to wait for another holder. */
export interface Times {
  length: number;
  deadline: number;
  patience: number;
}

/**
 * What the work of a lease is given. It exists only while the claim does: after the work has ended, every call is
 * refused.
 */
export class Lease {
  readonly key: string;
  readonly token: number;
  readonly attempt: number;
  /** Whether an earlier holder stopped in the middle: check first what has happened. */
  readonly takenOver: boolean;
  /** The last checkpoint. */
  readonly point: string | null;
  readonly state: any;
  /** Aborted, with ID005 as the reason, when another process has taken the request over. */
  readonly signal: AbortSignal;
  /** What was recorded. */
  answer: Answer | undefined;
  readonly #lost = new AbortController();
  #timer: NodeJS.Timeout | undefined;
  // After the record or release the token holds the request no more.
  #done = false;
  #released = false;
  #over = false;
  readonly #calls = new Set<Promise<void>>();

  constructor(
    private readonly database: Database,
    private readonly request: Request,
    ticket: Ticket,
    private readonly times: Times,
  ) {
    this.key = request.key;
    this.token = ticket.token!;
    this.attempt = ticket.attempt!;
    this.takenOver = ticket.status === 'taken_over';
    this.point = ticket.point;
    this.state = ticket.state;
    this.signal = this.#lost.signal;
    this.#heartbeat();
  }

  #heartbeat() {
    this.#timer = setTimeout(
      () => {
        // An error of another kind may be gone at the next heartbeat.
        this.#extend()
          .catch(() => {})
          .finally(() => this.#done || this.#over || this.signal.aborted || this.#heartbeat());
      },
      (this.times.length * 1000) / 3,
    ).unref();
  }

  async #call(call: string, values: unknown[], conn?: unknown): Promise<void> {
    const { session, key } = this.request;
    const sent = () => ask(conn ?? this.database, `SELECT ${call}`, [session, key, String(this.token), ...values]);
    try {
      await (conn ? sent() : asking(this.times.deadline, sent));
    } catch (error) {
      if (sqlstate(error) === 'ID005' && !this.#done) this.#lost.abort(error);
      throw error;
    }
  }

  /** A call of the work, for which the end of the work waits. */
  #called(call: () => Promise<void>): Promise<void> {
    if (this.#over) return Promise.reject(new Error('the lease has ended with the work that held it'));
    const made = call();
    this.#calls.add(made);
    made.then(
      () => this.#calls.delete(made),
      () => this.#calls.delete(made),
    );
    return made;
  }

  async #complete(call: string, values: unknown[], conn?: unknown) {
    // A heartbeat that arrives after the end must not be taken for the loss of the lease.
    this.#done = true;
    try {
      await this.#call(call, values, conn);
    } catch (error) {
      this.#done = this.answer !== undefined;
      if (sqlstate(error) === 'ID005') this.#lost.abort(error);
      throw error;
    }
  }

  #extend(): Promise<void> {
    return this.#call('idem_extend($1::text, $2::text, $3::text::bigint, $4::text::interval)', [
      text(this.times.length),
    ]);
  }

  /** Extends the claim to its full length from now. The heartbeat does so, too. */
  extend(): Promise<void> {
    return this.#called(() => this.#extend());
  }

  /** Saves how far the work has got. */
  checkpoint(point: string, state?: unknown): Promise<void> {
    const call = 'idem_checkpoint($1::text, $2::text, $4::text, $5::text::jsonb, token => $3::text::bigint)';
    return this.#called(() => this.#call(call, [point, json(state)]));
  }

  /** Records the outcome; with `conn`, the connection of a transaction of yours, in that transaction. */
  record(response?: unknown, { failed = false, conn }: { failed?: boolean; conn?: unknown } = {}): Promise<void> {
    const recorded = json(response);
    const call =
      'idem_record($1::text, $2::text, $4::text::jsonb, failed => $5::text::boolean, token => $3::text::bigint)';
    return this.#called(async () => {
      await this.#complete(call, [recorded, text(failed)], conn);
      this.answer ??= answerOf(failed ? 'failed' : 'succeeded', recorded && JSON.parse(recorded), false);
    });
  }

  /** Gives the request up. Only for work that had no effect: the next holder is not told to check. */
  release(): Promise<void> {
    return this.#called(async () => {
      await this.#complete('idem_release($1::text, $2::text, token => $3::text::bigint)', []);
      this.#released = true;
    });
  }

  /** Ends the lease with the work: calls that were not awaited are finished, and the heartbeat stops. */
  async end(): Promise<void> {
    await Promise.allSettled(this.#calls);
    this.#over = true;
    clearTimeout(this.#timer);
  }

  /** Whether the request was recorded or released. */
  get completed(): boolean {
    return this.answer !== undefined || this.#released;
  }
}

/**
 * Begins a request with a lease, and calls `work(lease)`, which records or releases it. If the work throws, the lease
 * expires: the next begin takes over, and is told to check.
 */
export async function lease(
  database: Database,
  session: string,
  key: Key,
  payload: unknown,
  work: (lease: Lease) => unknown,
  options: LeaseOptions = {},
): Promise<Answer | undefined> {
  checkDatabase(database, session);
  checkFunction('the work', work);
  checkOptions(options, ['deadline', 'wait', 'lease']);
  const { deadline = 30, wait = 0.2, lease: length = 30 } = options;
  const request = new Request(session, key, payload, wait);
  return unwrapped(
    hold(database, request, { length, deadline, patience: deadline }, async (held) => {
      await work(held);
      return true;
    }),
  );
}

/** `work` returns whether it has to have recorded or released. */
export async function hold(
  database: Database,
  request: Request,
  times: Times,
  work: (lease: Lease) => Promise<boolean>,
): Promise<Answer | undefined> {
  const ticket = await retry(times.deadline, () => beginLease(database, request, times.length), times.patience);
  if (ticket.token === null) return request.answered(ticket);
  const held = new Lease(database, request, ticket, times);
  let complete = true;
  try {
    complete = await work(held);
  } catch (error) {
    held.signal.throwIfAborted();
    throw error;
  } finally {
    await held.end();
  }
  if (!held.answer) held.signal.throwIfAborted();
  if (complete && !held.completed) throw new Unrecorded(request.key);
  return held.answer;
}

async function beginLease(database: Database, request: Request, length: number): Promise<Ticket> {
  try {
    return await request.beginLeased(database, length);
  } catch (error) {
    throw isRetryable(error) && !(error instanceof InProgress) ? new Again(error) : error;
  }
}
