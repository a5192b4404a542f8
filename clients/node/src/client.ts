// A client that numbers its requests and keeps the sending rule: number n is sent once the answer to n - window has
// arrived.

import { ask, type Connection, type Database } from './database.js';
import { InProgress, Interrupted, isRetryable, sqlstate } from './errors.js';
import { checkDatabase, checkFunction, checkOptions } from './options.js';
import { answerOf, asking, lookUp, text, type Answer } from './request.js';
import { run, type RunOptions } from './run.js';

interface Session {
  name: string;
  window: number;
}

/** One lane for each place in the window. A lane sends its numbers one after the other: 1, 6, 11 … in a window of 5. */
interface Lane {
  readonly place: number;
  number: number;
  session?: Session;
  /** Whether it is unknown if the number was executed. */
  doubt: boolean;
}

export interface ClientOptions {
  /** How many requests may be in flight. Default: the server's setting. */
  window?: number;
  /** After how many seconds without a request the session may end. */
  timeout?: number;
}

export class Client<D extends Database> {
  #session: Promise<Session> | undefined;
  #free: Lane[] | undefined;
  readonly #waiting: ((lane: Lane) => void)[] = [];

  /**
   * A client registers once, when the process starts: the same name, registered again, stops the former one (ID005).
   */
  constructor(
    private readonly database: D,
    private readonly name: string,
    private readonly options: ClientOptions = {},
  ) {
    checkDatabase(database);
    if (typeof name !== 'string' || name === '')
      throw new TypeError('the second argument is the name of the client, a string');
    checkOptions(options, ['window', 'timeout']);
  }

  /** The session, registered if there is none or if the former one has ended. */
  register(): Promise<Session> {
    return (this.#session ??= this.#register().catch((error) => {
      this.#session = undefined;
      throw error;
    }));
  }

  async #register(): Promise<Session> {
    // The database makes the ID before the first attempt: its time shows which of two registrations was first.
    const [[id] = []] = await asking(30, () => ask(this.database, 'SELECT idem_generate_id()::text'));
    const register = `SELECT session::text, window_size FROM idem_register($1::text, window_size => $2::text::integer,
      timeout => $3::text::interval, request_id => $4::text::uuid)`;
    const values = [this.name, text(this.options.window), text(this.options.timeout), id];
    const [[session, size] = []] = await asking(30, () => ask(this.database, register, values));
    const window = Number(size);
    this.#free ??= Array.from({ length: window }, (_, i) => ({ place: i + 1, number: i + 1, doubt: false }));
    return { name: String(session), window };
  }

  /**
   * Sends a request under the next number. As `run`, but it tries without end unless there is a `deadline`. After the
   * deadline it is unknown whether the request was executed, and sending it again makes another request of it.
   */
  async send<R = any>(
    payload: unknown,
    work: (conn: Connection<D>) => R | Promise<R>,
    options: RunOptions = {},
  ): Promise<Answer<R>> {
    checkFunction('the work', work);
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

  /** Undefined if the session has ended and the request was not executed. */
  async #attempt(
    lane: Lane,
    payload: unknown,
    work: (conn: any) => any,
    options: RunOptions,
  ): Promise<Answer | undefined> {
    const session = await this.register();
    if (lane.session !== session) Object.assign(lane, { session, number: lane.place, doubt: false });
    let sent = false;
    try {
      // A number in doubt belongs to an earlier request, which must not take effect any more.
      if (lane.doubt) await this.#settle(session, lane.number, options.deadline!);
      if (lane.doubt) lane.number += session.window;
      lane.doubt = false;
      sent = true;
      const answer = await run(this.database, session.name, lane.number, payload, work, options);
      lane.number += session.window;
      return answer;
    } catch (error) {
      // ID005 is raised: another process is this client now, and this one has to stop.
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
    return asking(deadline, async () => {
      const [[status] = []] = await ask(this.database, 'SELECT status FROM idem_settle($1::text, $2::text)', [
        name,
        String(number),
      ]);
      if (status === 'in_progress') throw new InProgress(String(number), null);
    });
  }

  /** The outcome of a number of a session that has ended. Nothing can be begun in that session any more. */
  #lookBack({ name }: Session, number: number, deadline: number): Promise<Answer | undefined> {
    return asking(deadline, async () => {
      const ticket = await lookUp(this.database, name, number, 0).catch((error) => {
        if (sqlstate(error) === 'ID004') return undefined; // the session is unknown, so it never had an outcome
        throw error;
      });
      if (!ticket || ticket.status === 'unknown') return undefined;
      const { status, response, point, state, expiresAt } = ticket;
      if (status === 'in_progress' || status === 'not_here') throw new InProgress(String(number), expiresAt);
      if (status === 'suspended') throw new Interrupted(String(number), point, state);
      return answerOf(status as Answer['status'], response, true);
    });
  }

  /** Ends the session, after the requests that are in flight. */
  async close(): Promise<void> {
    const session = await this.#session;
    if (session) await asking(30, () => ask(this.database, 'SELECT idem_close($1::text)', [session.name]));
  }
}
