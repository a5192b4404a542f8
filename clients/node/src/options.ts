// Mistakes in the arguments of a call, reported when it is made and not at the first request.

import type { Database } from './database.js';

export const isPool = (value: any): boolean =>
  typeof value?.connect === 'function' && typeof value.query === 'function' && typeof value.totalCount === 'number';
export const isPostgres = (value: any): boolean =>
  typeof value === 'function' && typeof value.unsafe === 'function' && typeof value.begin === 'function';

function shown(value: unknown): string {
  if (value === null || value === undefined) return String(value);
  if (typeof value === 'string') return `the string ${JSON.stringify(value)}`;
  return typeof value === 'object' || typeof value === 'function' ? `a value of type ${typeof value}` : String(value);
}

/** Checks the two arguments that every call begins with. */
export function checkDatabase(database: unknown, session?: unknown): asserts database is Database {
  if (typeof database === 'string') {
    throw new TypeError(`the first argument is the pool and the second one the session, not ${shown(database)} first`);
  }
  if (!isPool(database) && !isPostgres(database)) {
    throw new TypeError(
      `expected a pool of pg (new pg.Pool()) or the sql of postgres.js (postgres()), got ${shown(database)}: ` +
        'a single client or the connection of a transaction cannot be used',
    );
  }
  if (arguments.length > 1 && (typeof session !== 'string' || session === '')) {
    throw new TypeError(`the second argument is the name of a session, a string, not ${shown(session)}`);
  }
}

export function checkFunction(name: string, value: unknown) {
  if (typeof value !== 'function') throw new TypeError(`${name} is a function, not ${shown(value)}`);
}

type Check = (value: any) => boolean;
const seconds: [Check, string] = [(value) => typeof value === 'number' && value >= 0, 'a number of seconds'];
const positive: [Check, string] = [
  (value) => typeof value === 'number' && value > 0,
  'a number of seconds, more than 0',
];
const flag: [Check, string] = [(value) => typeof value === 'boolean', 'true or false'];
const strings: [Check, string] = [
  (value) => Array.isArray(value) && value.every((one) => typeof one === 'string' && one !== ''),
  'an array of strings',
];
const count: [Check, string] = [(value) => Number.isSafeInteger(value) && value >= 1, 'a whole number, 1 or more'];

const KINDS: Record<string, [Check, string]> = {
  maxAttempts: count,
  claim: flag,
  deadline: seconds,
  handlerTimeout: positive,
  lease: positive,
  interval: positive,
  grace: seconds,
  required: flag,
  strict: flag,
  timeout: positive,
  ttl: positive,
  wait: seconds,
  window: count,
  concurrency: count,
  maxBody: [(value) => Number.isSafeInteger(value) && value >= 0, 'a number of bytes'],
  headers: strings,
  methods: strings,
  identity: [(value) => typeof value === 'function', 'a function of the request'],
  unprotectable: [(value) => value === 'refuse' || value === 'pass', "'refuse' or 'pass'"],
  docs: [(value) => typeof value === 'string' && value !== '', 'a URL'],
  signal: [(value) => typeof value?.addEventListener === 'function', 'an AbortSignal'],
  onError: [(value) => typeof value === 'function', 'a function'],
};

/** Checks the options of a call. An option that does not exist would be ignored without a word. */
export function checkOptions(options: unknown, allowed: readonly string[]) {
  if (typeof options !== 'object' || options === null || Array.isArray(options)) {
    throw new TypeError(`the options are an object, not ${shown(options)}`);
  }
  for (const [name, value] of Object.entries(options)) {
    if (!allowed.includes(name))
      throw new TypeError(`there is no option ${name}; the options are ${[...allowed].sort().join(', ')}`);
    if (value === undefined) continue;
    const [check, kind] = KINDS[name]!;
    if (!check(value)) throw new TypeError(`the option ${name} is ${kind}, not ${shown(value)}`);
  }
}
