// run: a request is begun, worked on and recorded in one transaction, and answered after its COMMIT.

import { ask, type Connection, type Database } from './database.js';
import { Again, Final, sqlstate } from './errors.js';
import { checkDatabase, checkFunction, checkOptions } from './options.js';
import {
  answerOf,
  asking,
  BEGIN,
  json,
  lookUp,
  named,
  Request,
  retry,
  unwrapped,
  type Answer,
  type Key,
  type Options,
  type Ticket,
} from './request.js';
import { Transaction } from './transaction.js';

export interface RunOptions extends Options {
  /** Calls the work without waiting for the answer of begin: fewer round trips, if the driver sends ahead. */
  claim?: boolean;
  /** How many seconds the outcome is kept; by default the ttl of the session. */
  ttl?: number;
}

const RUN = ['deadline', 'wait', 'claim', 'ttl'];
const ONCE = `SELECT ord FROM idem_once_many($1::text, ARRAY(SELECT key FROM jsonb_array_elements_text($2::text::jsonb)
  WITH ORDINALITY k(key, place) ORDER BY place)) ORDER BY ord`;

/** Begins a request, calls `work(conn)` if it is new, records what that returns, and commits. */
export async function run<D extends Database, R = any>(
  database: D,
  session: string,
  key: Key,
  payload: unknown,
  work: (conn: Connection<D>) => R | Promise<R>,
  options: RunOptions = {},
): Promise<Answer<R>> {
  checkDatabase(database, session);
  checkFunction('the work', work);
  checkOptions(options, RUN);
  const { deadline = 30, wait = 0.2, claim = false, ttl } = options;
  const request = new Request(session, key, payload, wait);

  async function attempt(claims: boolean): Promise<Answer> {
    const transaction = await Transaction.open(database);
    let claimed: Promise<unknown> | undefined;
    let refusal: unknown;
    try {
      if (claims) {
        claimed = transaction.send(BEGIN + request.claim());
        claimed.catch((error) => (refusal = error));
      } else {
        const ticket = request.ticket(await transaction.send(BEGIN + request.begin()));
        const answer = request.answered(ticket);
        if (answer) {
          if (ticket.wrote) await transaction.commit();
          else transaction.leave();
          return answer;
        }
      }
      const outcome = await perform(work, transaction).catch(async (error) => {
        await claimed; // the other error is a consequence of its refusal
        throw error;
      });
      const response = json(outcome.response);
      const [begun, recorded] = await Promise.allSettled([
        claimed,
        transaction.commit(request.record(response, outcome.failed, ttl)),
      ]);
      for (const one of [begun, recorded]) if (one.status === 'rejected') throw one.reason;
      return answerOf(outcome.failed ? 'failed' : 'succeeded', response && JSON.parse(response), false);
    } catch (error) {
      await transaction.rollback();
      // Begin explains what a claim refuses.
      if (refusal && /^(ID011|55P03|55000)$/.test(sqlstate(causeOf(refusal)) ?? '')) return attempt(false);
      throw error;
    }
  }

  return unwrapped(retry(deadline, () => attempt(claim)));
}

const causeOf = (error: unknown) => (error instanceof Again ? error.cause : error);

async function perform(
  work: (conn: any) => unknown,
  transaction: Transaction,
): Promise<{ response: unknown; failed: boolean }> {
  try {
    return { response: await work(transaction.conn), failed: false };
  } catch (error) {
    if (error instanceof Final) return { response: error.response, failed: true };
    throw transaction.retryable ? new Again(error) : transaction.explain(error);
  }
}

/** Reports the state of a request, and does not begin it. */
export async function lookup(database: Database, session: string, key: Key, options: Options = {}): Promise<Ticket> {
  checkDatabase(database, session);
  checkOptions(options, ['deadline', 'wait']);
  const { deadline = 30, wait = 0 } = options;
  return asking(deadline, () => lookUp(database, session, key, wait));
}

/** Those of the keys that an inbox has not seen before, in the transaction of `conn`. */
export async function once<K extends Key>(conn: unknown, session: string, keys: readonly K[]): Promise<K[]> {
  const rows = await ask(conn, ONCE, [session, JSON.stringify(keys.map(named))]);
  return rows.map(([ord]) => keys[Number(ord) - 1]!);
}
