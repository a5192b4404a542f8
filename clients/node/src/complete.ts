// Completes abandoned requests: their lease has expired, or they stopped at a checkpoint, and no client retries them.

import { ask, type Database } from './database.js';
import { Final } from './errors.js';
import { hold, type Lease } from './lease.js';
import { checkDatabase, checkFunction, checkOptions } from './options.js';
import { asking, Request, text } from './request.js';

export interface CompleteOptions {
  /** The length of the leases in seconds: 30. A heartbeat extends a lease while its handler runs. */
  lease?: number;
  /** How many seconds to pause between two searches: 1. */
  interval?: number;
  /**
   * For how many seconds a request is left to its client after its lease has expired or its checkpoint was written: 10.
   * Each further attempt doubles them, up to five minutes.
   */
  grace?: number;
  /** How many handlers run at once: 4. */
  concurrency?: number;
  /**
   * Leaves requests alone that were attempted so often. By default only the option `max_attempts` of the session
   * counts.
   */
  maxAttempts?: number;
  /** Ends the completer: it takes no further request over, and waits for the handlers that are running. */
  signal?: AbortSignal;
  /** Is given the errors of handlers, with the key, and of searches, without one. Default: `console.error`. */
  onError?: (error: unknown, key?: string) => void;
}

const OPTIONS = ['lease', 'interval', 'grace', 'concurrency', 'maxAttempts', 'signal', 'onError'];
// The pause after an attempt is counted in the database, so that all completers see the same one. They shuffle the
// list, so that they rarely try the same request.
const ABANDONED = `SELECT request::text FROM idempotence.unfinished
  WHERE session = $1::text AND coalesce(stream, '') = '' AND last IS NULL AND state <> 'leased'
    AND ($2::text IS NULL OR coalesce(attempt, 1) < $2::text::integer)
    AND coalesce(leased_until, since) + make_interval(secs =>
      least($5::text::float8 * 2 ^ (least(coalesce(attempt, 1), 20) - 1), 300)) <= clock_timestamp()
    AND request::text <> ALL (ARRAY(SELECT jsonb_array_elements_text($3::text::jsonb)))
  ORDER BY random() LIMIT $4::text::integer`;

/**
 * Looks for the abandoned requests of a session, takes each one over with a lease, and calls `handler(lease)`, which
 * continues from `lease.point`. What the handler returns is recorded, unless it has recorded or released itself; a
 * `Final` is recorded as a failure. After another error the lease expires, and the request is taken over again. Several
 * completers, in any number of processes, may work on one session. The promise resolves after `signal` was aborted.
 */
export async function complete(
  database: Database,
  session: string,
  handler: (lease: Lease) => unknown,
  options: CompleteOptions = {},
): Promise<void> {
  checkDatabase(database, session);
  checkFunction('the handler', handler);
  checkOptions(options, OPTIONS);
  const { interval = 1, concurrency = 4, signal, onError = report } = options;
  const running = new Map<string, Promise<void>>();

  const stopped = new Promise<void>((resolve) => {
    if (signal?.aborted) resolve();
    signal?.addEventListener('abort', () => resolve(), { once: true });
  });
  while (!signal?.aborted) {
    const keys = await abandoned(database, session, options, [...running.keys()], concurrency - running.size).catch(
      (error) => {
        onError(error);
        return [];
      },
    );
    for (const key of signal?.aborted ? [] : keys) {
      const work = takeOver(database, session, key, handler, options)
        .catch((error) => onError(error, key))
        .finally(() => running.delete(key));
      running.set(key, work);
    }
    if (running.size < concurrency) await pause(interval, stopped);
    else await Promise.race([...running.values(), stopped]);
  }
  await Promise.all(running.values());
}

const report = (error: unknown, key?: string) =>
  console.error(
    `idempotence: completing ${key === undefined ? 'abandoned requests' : `request ${key}`} failed:`,
    error,
  );

async function abandoned(
  database: Database,
  session: string,
  { maxAttempts, grace = 10 }: CompleteOptions,
  except: string[],
  limit: number,
): Promise<string[]> {
  if (limit <= 0) return [];
  const values = [session, text(maxAttempts), JSON.stringify(except), String(limit), String(grace)];
  const rows = await asking(5, () => ask(database, ABANDONED, values));
  return rows.map(([key]) => key);
}

async function takeOver(
  database: Database,
  session: string,
  key: string,
  handler: (lease: Lease) => unknown,
  { lease: length = 30 }: CompleteOptions,
): Promise<void> {
  const request = new Request(session, key, null, 0);
  await hold(database, request, { length, deadline: length, patience: 0 }, async (held) => {
    const { response, failed } = await perform(handler, held);
    if (!held.completed) await held.record(response, { failed });
    return true;
  }).catch((error) => {
    // Another completer, or a client, was faster.
    if (error?.name !== 'InProgress') throw error;
  });
}

async function perform(
  handler: (lease: Lease) => unknown,
  held: Lease,
): Promise<{ response: unknown; failed: boolean }> {
  try {
    return { response: await handler(held), failed: false };
  } catch (error) {
    if (error instanceof Final) return { response: error.response, failed: true };
    throw error;
  }
}

/** Waits for a number of seconds, or until the completer is stopped. */
async function pause(seconds: number, stopped: Promise<void>) {
  let timer: NodeJS.Timeout;
  const over = new Promise<void>((resolve) => (timer = setTimeout(resolve, seconds * 1000)));
  await Promise.race([over, stopped]);
  clearTimeout(timer!);
}
