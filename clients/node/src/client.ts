// A client that numbers its requests, and keeps the sending rule: number n is sent once the answer to n - window is in.

import { ask, type Connection, type Database } from './database.js';
import { InProgress, Interrupted, isRetryable, sqlstate } from './errors.js';
import { answerOf, lookup, retry, run, text, type Answer, type RunOptions } from './run.js';

interface Session {
  name: string;
  window: number;
}

/** One for each place in the window. It sends its numbers one after the other: 1, 6, 11 … in a window of 5. */
interface Lane {
  readonly place: number;
  number: number;
  session?: Session;
  /** Whether nobody knows what became of the number. */
  doubt: boolean;
}

export interface ClientOptions {
  /** How many requests may be in flight: by default the server's setting. */
  window?: number;
  /** The longest silence in seconds that the session outlasts. */
  timeout?: number;
}

export class Client<D extends Database> {
  #session: Promise<Session> | undefined;
  #free: Lane[] | undefined;
  readonly #waiting: ((lane: Lane) => void)[] = [];

  /** A client registers once, when the process starts: the same name, registered again, stops the former one (ID005). */
  constructor(private readonly database: D, private readonly name: string, private readonly options: ClientOptions = {}) {}

  /** The session, registered if there is none, or none but the one that has ended. */
  register(): Promise<Session> {
    return (this.#session ??= this.#register().catch((error) => {
      this.#session = undefined;
      throw error;
    }));
  }

  async #register(): Promise<Session> {
    // Made before the first attempt, by the database: the time in it tells which of two registrations came first.
    const [made] = await retry(30, () => ask(this.database, 'SELECT idem_generate_id()::text AS id'));
    const register = `SELECT session, window_size FROM idem_register($1::text, window_size => $2::text::integer,
      timeout => $3::text::interval, request_id => $4::text::uuid)`;
    const values = [this.name, text(this.options.window), text(this.options.timeout), made!['id']];
    const [row] = await retry(30, () => ask(this.database, register, values));
    const window = Number(row!['window_size']);
    this.#free ??= Array.from({ length: window }, (_, i) => ({ place: i + 1, number: i + 1, doubt: false }));
    return { name: String(row!['session']), window };
  }

  /** Sends a request under the next number: as `run`, but it tries without end, unless there is a `deadline`. After that
   *  nobody knows what was done, and the same request sent again would be another one. */
  async send<R = any>(payload: unknown, work: (conn: Connection<D>) => R | Promise<R>, options: RunOptions = {}): Promise<Answer<R>> {
    await this.register();
    const lane = this.#free!.shift() ?? (await new Promise<Lane>((taken) => this.#waiting.push(taken)));
    try {
      for (;;) {
        const answer = await this.#attempt(lane, payload, work, { deadline: Infinity, ...options });
        if (answer) return answer;
      }
    } finally {
      const next = this.#waiting.shift();
      if (next) next(lane);
      else this.#free!.push(lane);
    }
  }

  /** Undefined if it was not done, and its session has ended. */
  async #attempt(lane: Lane, payload: unknown, work: (conn: any) => any, options: RunOptions): Promise<Answer | undefined> {
    const session = await this.register();
    if (lane.session !== session) Object.assign(lane, { session, number: lane.place, doubt: false });
    let sent = false;
    try {
      // A number in doubt is another request's: it must not take effect any more.
      if (lane.doubt) await this.#settle(session, lane.number, options.deadline!);
      if (lane.doubt) lane.number += session.window;
      lane.doubt = false;
      sent = true;
      const answer = await run(this.database, session.name, lane.number, payload, work, options);
      lane.number += session.window;
      return answer;
    } catch (error) {
      // Not ID005: another process is this client now, and this one has to stop.
      if (sqlstate(error) !== 'ID004') {
        lane.doubt ||= isRetryable(error);
        throw error;
      }
      const answer = sent ? await this.#lookBack(session, lane.number, options.deadline!) : undefined;
      if ((await this.#session) === session) this.#session = undefined;
      return answer;
    }
  }

  #settle({ name }: Session, number: number, deadline: number) {
    return retry(deadline, async () => {
      const [row] = await ask(this.database, 'SELECT status FROM idem_settle($1::text, $2::text)', [name, String(number)]);
      if (row!['status'] === 'in_progress') throw new InProgress(String(number), null);
    });
  }

  /** What came of a number of a session that has ended: nothing can be begun in it any more. */
  #lookBack({ name }: Session, number: number, deadline: number): Promise<Answer | undefined> {
    return retry(deadline, async () => {
      const ticket = await lookup(this.database, name, number, { deadline: 0 }).catch((error) => {
        if (sqlstate(error) === 'ID004') return undefined; // not even the session is known: it never had an outcome
        throw error;
      });
      if (!ticket || ticket.status === 'unknown') return undefined;
      const { status, response, point, state, expiresAt } = ticket;
      if (status === 'in_progress' || status === 'not_here') throw new InProgress(String(number), expiresAt);
      if (status === 'suspended') throw new Interrupted(String(number), point, state);
      return answerOf(status as Answer['status'], response, true);
    });
  }

  /** Ends the session. Requests that are in flight end first. */
  async close(): Promise<void> {
    const session = await this.#session;
    if (session) await retry(30, () => ask(this.database, 'SELECT idem_close($1::text)', [session.name]));
  }
}
