// The header Idempotency-Key, whatever the framework: whether a request is executed, and which answer is sent after
// COMMIT.

import { type Connection, type Database } from './database.js';
import { Again, InProgress, Interrupted, isRetryable, sqlstate } from './errors.js';
import { callerOf, keyOf, nameOf, payloadOf, type Incoming } from './incoming.js';
import { hold, type Lease, type Times } from './lease.js';
import { checkDatabase, checkOptions } from './options.js';
import { checkSendable, isFinal, recorded, replayed, type Outgoing } from './outgoing.js';
import { problem, type Problem } from './problems.js';
import { BEGIN, lookUp, RELEASE, Request, retry, SAVEPOINT, UNDO, type Answer } from './request.js';
import { Transaction } from './transaction.js';

export interface HttpOptions<Incoming = any> {
  /** The methods that are protected, in any case. Default: every method but GET, HEAD, OPTIONS and TRACE. */
  methods?: readonly string[];
  /** Whether a request without a key is refused: true. Otherwise it is executed, without protection. */
  required?: boolean;
  /** Whether the key has to be quoted, as the draft of the IETF demands: false. */
  strict?: boolean;
  /** The caller: a string or a whole number, or a promise of one. The keys of two callers never meet. */
  identity?: (request: Incoming) => string | number | bigint | Promise<string | number | bigint>;
  /** The largest body in bytes that is protected: a MiB. */
  maxBody?: number;
  /**
   * What becomes of a body that is larger, or that cannot be compared: `refuse`, or `pass` (executed without
   * protection).
   */
  unprotectable?: 'refuse' | 'pass';
  /** How many seconds a duplicate waits for the answer, without holding a connection: 0. */
  wait?: number;
  /** For how many seconds to try again after a lost connection and the like: 5. */
  deadline?: number;
  /**
   * For how many seconds a handler may hold its connection: 60. Then the answer is 503, and the connection is closed.
   */
  handlerTimeout?: number;
  /** The headers that are recorded and replayed, in any case. Set-Cookie never is. */
  headers?: readonly string[];
  /** The page that explains the types of the problem documents. */
  docs?: string;
  /** How many seconds the answer is kept; by default the ttl of the session. */
  ttl?: number;
  /**
   * The length of a lease in seconds, for effects elsewhere: the handler is given the lease in place of a connection.
   */
  lease?: number;
}

const OPTIONS = [
  'methods',
  'required',
  'strict',
  'identity',
  'maxBody',
  'unprotectable',
  'wait',
  'deadline',
  'handlerTimeout',
  'headers',
  'docs',
  'ttl',
  'lease',
];
const ANSWER_OPTIONS = ['strict', 'identity', 'wait', 'deadline', 'docs'];
/** For how many seconds a connection is held by a handler, or waited for while it begins a request. */
const LONGEST = 60;
const SAFE = ['GET', 'HEAD', 'OPTIONS', 'TRACE'];

/** What a handler works with: the connection of the transaction; with the option `lease` the lease. */
export type Given<D, O> = O extends { lease: number } ? Lease : Connection<D>;

/** What becomes of an error that the handler has thrown. */
export interface Attempt {
  /** Whether the handler is called again, so that its error does not become an answer. */
  repeats(): boolean;
  /** The error as the application shall read it. */
  explain(error: unknown): unknown;
}

const ONCE: Attempt = { repeats: () => false, explain: (error) => error };

/** What a framework does with a handler. */
export interface Handling {
  /**
   * Calls the handler, and returns its answer. An error that `attempt` does not repeat is the application's to answer.
   */
  answer(given: any, attempt: Attempt): Promise<Outgoing>;
  /** The handler is not waited for any more. */
  abandon?(): void;
}

export interface Route {
  database: Database;
  session: string;
  options: HttpOptions;
}

/** Checks the arguments of an adapter. */
export function checked(database: Database, session: string, options: HttpOptions): Route {
  checkDatabase(database, session);
  checkOptions(options, OPTIONS);
  const { methods, lease, required, unprotectable } = options;
  if (lease && (required === false || unprotectable === 'pass')) {
    throw new TypeError('with the option lease every request needs a key: remove required: false and unprotectable');
  }
  return {
    database,
    session,
    options: methods ? { ...options, methods: methods.map((name) => name.toUpperCase()) } : options,
  };
}

export function checkedAnswer(database: Database, session: string, options: HttpOptions): Route {
  checkDatabase(database, session);
  checkOptions(options, ANSWER_OPTIONS);
  return { database, session, options };
}

function isProtected({ method, methods: routed }: Incoming, { methods }: HttpOptions): boolean {
  if (methods) return methods.includes(method);
  if (routed?.length && routed.every((name) => SAFE.includes(name.toUpperCase()))) {
    throw new TypeError(
      `the route has only safe methods (${routed.join(', ')}), which need no key: ` +
        'remove the adapter, or name them in its option methods',
    );
  }
  return !SAFE.includes(method);
}

/** The name of the request; or a problem; or undefined, if there is no key. */
async function named(incoming: Incoming, options: HttpOptions): Promise<string | Outgoing | undefined> {
  if (incoming.keys.length === 0) return undefined;
  const key = incoming.keys.length === 1 ? keyOf(incoming.keys[0]!, options.strict) : undefined;
  if (key === undefined) return problem('key-malformed', options.docs);
  return nameOf(await callerOf(incoming.identify), key);
}

/** The request as it is named and compared; a problem; or undefined, if it is not protected. */
async function protect({ session, options }: Route, incoming: Incoming): Promise<Request | Outgoing | undefined> {
  const { required = true, maxBody = 1 << 20, unprotectable = 'refuse', docs } = options;
  if (!isProtected(incoming, options)) return undefined;
  const name = await named(incoming, options);
  if (name === undefined) return required ? problem('key-missing', docs) : undefined;
  if (typeof name !== 'string') return name;
  const { body } = incoming;
  if (body === 'body-incomplete') return problem(body, docs);
  const fault = typeof body === 'string' ? body : body.bytes > maxBody ? 'body-too-large' : undefined;
  if (typeof body === 'string' || fault) {
    if (unprotectable === 'pass') return undefined;
    return problem(fault!, docs, fault === 'body-too-large' ? `The limit is ${maxBody} bytes.` : undefined);
  }
  return new Request(session, name, payloadOf(incoming, body.digest), 0);
}

function replay(answer: Answer, { docs }: HttpOptions): Outgoing {
  if (answer.status === 'cancelled') return problem('cancelled', docs);
  // Given up after too many attempts, or recorded by another program than an adapter.
  if (!Array.isArray(answer.response?.headers)) return problem('interrupted', docs);
  return replayed(answer.response);
}

/** What an error of the client or of the server means to the caller. Others are the framework's. */
function explained(error: unknown, { docs }: HttpOptions): Outgoing {
  if (error instanceof InProgress) return problem('in-progress', docs);
  if (error instanceof Interrupted) return problem('interrupted', docs);
  if (error instanceof TooLarge) return problem('response-too-large', docs, error.message);
  if (error instanceof Again || error instanceof TimedOut) {
    console.error('idempotence: a request is answered with 503:', error instanceof Again ? error.cause : error);
    return problem('unavailable', docs);
  }
  const states: Record<string, Problem> = { ID001: 'key-reused', ID005: 'superseded' };
  const name = states[sqlstate(error) ?? ''];
  if (!name) throw error;
  return problem(name, docs);
}

/** The handler has exceeded its limit. */
class TimedOut extends Error {
  constructor(seconds: number) {
    super(
      `a handler has not answered within ${seconds} seconds (the option handlerTimeout); its connection was closed`,
    );
  }
}

/** The response cannot be recorded. The detail of the server names its size and the limit. */
class TooLarge extends Error {
  constructor(cause: any) {
    super(cause.detail ?? '', { cause });
  }
}

/** The answer that may be sent. */
export async function serve(route: Route, incoming: Incoming, handling: Handling): Promise<Outgoing> {
  const { deadline = 5, wait = 0, lease } = route.options;
  const request = await protect(route, incoming);
  if (request !== undefined && !(request instanceof Request)) return request;
  try {
    if (lease) {
      if (request) return await leased(route, request, { length: lease, deadline, patience: wait }, handling);
      return await handling.answer(undefined, ONCE);
    }
    let called = false;
    const once = {
      ...handling,
      answer: (given: any, attempt: Attempt) => {
        called = true;
        return handling.answer(given, attempt);
      },
    };
    return await retry(
      deadline,
      async () => {
        try {
          return await inTransaction(route, request, request ? handling : once);
        } catch (error) {
          // A request without a key is not executed again: no record shows that the first attempt had no effect.
          throw error instanceof Again && !request && called ? error.cause : error;
        }
      },
      wait,
    );
  } catch (error) {
    return explained(error, route.options);
  }
}

async function inTransaction(
  { database, options }: Route,
  request: Request | undefined,
  handling: Handling,
): Promise<Outgoing> {
  const transaction = await Transaction.open(database);
  const { handlerTimeout = LONGEST } = options;

  /** Closes the connection if the work takes longer. */
  async function limited<T>(seconds: number, work: Promise<T>): Promise<T> {
    let timer: NodeJS.Timeout | undefined;
    const expired = new Promise<never>((_, reject) => {
      timer = setTimeout(() => {
        reject(new TimedOut(seconds));
        transaction.abort();
        handling.abandon?.();
      }, seconds * 1000);
    });
    return Promise.race([work, expired]).finally(() => clearTimeout(timer));
  }

  try {
    const begun = await limited(LONGEST, transaction.send(BEGIN + (request?.begin() ?? '') + SAVEPOINT));
    if (request) {
      const ticket = request.ticket(begun);
      const earlier = request.answered(ticket);
      if (earlier) {
        if (ticket.wrote) await transaction.commit();
        else transaction.leave();
        return replay(earlier, options);
      }
    }
    return await limited(handlerTimeout, conclude(transaction, request, options, handling));
  } finally {
    await transaction.rollback();
  }
}

/** Calls the handler, records its answer, and commits. */
async function conclude(
  transaction: Transaction,
  request: Request | undefined,
  options: HttpOptions,
  handling: Handling,
): Promise<Outgoing> {
  let answer: Outgoing;
  try {
    answer = await handling.answer(transaction.conn, {
      repeats: () => transaction.retryable,
      explain: (error) => transaction.explain(error),
    });
  } catch (error) {
    throw transaction.retryable ? new Again(error) : error;
  }
  if (!isFinal(answer)) return answer;
  checkSendable(answer);
  const response = recorded(answer, options.headers);
  const record = request ? request.record(response, answer.status >= 400, options.ttl) : RELEASE;
  try {
    await transaction.commit(answer.thrown ? UNDO + record : record);
  } catch (error: any) {
    if (sqlstate(error) === 'ID009') throw new TooLarge(error);
    // The handler has caught an error of the database, which took its effects back. A refusal may be recorded all the
    // same.
    if (sqlstate(error) !== '25P02' || answer.thrown || answer.status < 400) throw error;
    await transaction.commit(UNDO + record);
  }
  return answer;
}

async function leased(route: Route, request: Request, times: Times, handling: Handling): Promise<Outgoing> {
  let answer: Outgoing | undefined;
  const earlier = await hold(route.database, request, times, async (held) => {
    // Another holder has taken the request over: the adapter does not wait for the handler any longer.
    const lost = new Promise<never>((_, reject) =>
      held.signal.addEventListener('abort', () => {
        handling.abandon?.();
        reject(held.signal.reason);
      }),
    );
    lost.catch(() => {});
    answer = await Promise.race([lost, handling.answer(held, { ...ONCE, repeats: () => held.signal.aborted })]);
    // An answer that is not final leaves the lease to expire: it is not known what was done elsewhere.
    if (!isFinal(answer)) return false;
    checkSendable(answer);
    try {
      await held.record(JSON.parse(recorded(answer, route.options.headers)), { failed: answer.status >= 400 });
    } catch (error) {
      throw sqlstate(error) === 'ID009' ? new TooLarge(error) : error;
    }
    return true;
  });
  return answer ?? replay(earlier!, route.options);
}

/** The answer of a request that is named by its key. It is never executed, and never cached. */
export async function tell(route: Route, incoming: Incoming): Promise<Outgoing> {
  const answer = await told(route, incoming);
  return { ...answer, headers: [...answer.headers, ['cache-control', 'no-store'], ['vary', 'Idempotency-Key']] };
}

async function told({ database, session, options }: Route, incoming: Incoming): Promise<Outgoing> {
  const { docs, deadline = 5, wait = 0 } = options;
  const name = (await named(incoming, options)) ?? problem('key-missing', docs);
  if (typeof name !== 'string') return name;
  try {
    return await retry(
      deadline,
      async () => {
        const ticket = await lookUp(database, session, name, 0).catch((error) => {
          throw isRetryable(error) ? new Again(error) : error;
        });
        if (ticket.status === 'in_progress') throw new InProgress(name, ticket.expiresAt);
        if (ticket.status === 'suspended') throw new Interrupted(name, ticket.point, ticket.state);
        if (ticket.status === 'not_here') return problem('unavailable', docs);
        if (!/^(succeeded|failed|cancelled)$/.test(ticket.status)) return problem('unknown', docs);
        return replay({ ...ticket, failed: ticket.status === 'failed' } as Answer, options);
      },
      wait,
    );
  } catch (error) {
    return explained(error, options);
  }
}
