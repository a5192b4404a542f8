// A request as it is named and compared: its key, its caller, and its whole body.

import { createHash } from 'node:crypto';

/** What a framework knows of a request. */
export interface Incoming {
  method: string;
  /** Path and query, as sent. */
  url: string;
  /** The values of the header Idempotency-Key. */
  keys: readonly string[];
  body: Body;
  /** The methods of the route, if the framework knows them. */
  methods?: readonly string[] | undefined;
  identify?: () => unknown;
}

/** The body: what makes it equal to another one, and how long it is; or why it cannot be compared. */
export type Body = { digest: string; bytes: number } | 'body-unsupported' | 'body-incomplete';

const digest = (value: string | Uint8Array) => createHash('sha256').update(value).digest('hex');

/**
 * The values of the header Idempotency-Key in a request of Node. An empty one is a value, too. A request of HTTP/2, or
 * of a test that injects it, has no `headersDistinct`.
 */
export function keysOf({ headers, headersDistinct }: any): string[] {
  return headersDistinct?.['idempotency-key'] ?? [headers['idempotency-key'] ?? []].flat();
}

/** The key in the header: a quoted string of RFC 8941, whose parameters have no meaning here, or a bare string. */
export function keyOf(header: string, strict = false): string | undefined {
  const quoted = /^"((?:[ !#-[\]-~]|\\["\\])*)" *(?:; *[a-z*][a-z0-9_.*-]*(?:=[!#-+\--:<-~]+)? *)*$/.exec(
    header.trim(),
  );
  const key = quoted
    ? quoted[1]!.replace(/\\(.)/g, '$1')
    : strict
      ? ''
      : (/^[!#-+\--:<-~]+$/.exec(header.trim())?.[0] ?? '');
  return key.length >= 1 && key.length <= 255 ? key : undefined;
}

/** The name of the request in its session, readable for operators: the caller, a colon, the key. */
export function nameOf(caller: string, key: string): string {
  let who = caller.replace(/[^A-Za-z0-9@._-]/gu, (character) =>
    [...Buffer.from(character)].map((byte) => `%${byte.toString(16).toUpperCase().padStart(2, '0')}`).join(''),
  );
  if (who.length > 100) who = `~${digest(caller)}`;
  const name = `${who}:${key}`;
  return name.length <= 255 ? name : `${who}~:${digest(key)}:${key}`.slice(0, 255);
}

/**
 * The caller, as the application identifies it. Anything else than a name would mix up callers: the text of every
 * object is the same.
 */
export async function callerOf(identify: (() => unknown) | undefined): Promise<string> {
  if (!identify) return '';
  const identity = await identify();
  if (typeof identity === 'string' && identity !== '') return identity;
  if (typeof identity === 'bigint' || Number.isSafeInteger(identity)) return String(identity);
  const found = identity === '' ? 'an empty string' : identity === null ? 'null' : `a value of type ${typeof identity}`;
  throw new TypeError(
    `identity returned ${found}: authenticate in front of the adapter, and let identity return the principal's ` +
      'id, a string or a whole number',
  );
}

/** Whether the request has a body, according to its headers. */
export function hasBody(request: any): boolean {
  const { headers } = request;
  if (headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0) return true;
  return (
    request.httpVersionMajor >= 2 &&
    headers['content-length'] === undefined &&
    request.stream?.endAfterHeaders === false
  );
}

/**
 * Compares a body as its parser has left it. `request` is the request of Node, `raw` the bytes if an earlier layer kept
 * them.
 */
export function bodyOf(request: any, parsed: unknown, raw: unknown): Body {
  const type = String(request.headers['content-type'] ?? '')
    .split(';')[0]!
    .trim()
    .toLowerCase();
  if (!hasBody(request)) return { digest: digest(''), bytes: 0 };
  // The reader of a stream may miss that it broke off. Node sets `complete` when the whole message has arrived.
  if (request.complete === false && (request.readableEnded || request.readableAborted || request.destroyed))
    return 'body-incomplete';
  if (type.startsWith('multipart/')) return 'body-unsupported';
  if (typeof raw === 'string' || raw instanceof Uint8Array)
    return { digest: digest(raw), bytes: Buffer.byteLength(raw) };
  if (parsed === undefined || parsed === null) return 'body-unsupported';
  const isJson = /[/+]json$/.test(type);
  if (parsed instanceof Uint8Array || (typeof parsed === 'string' && !isJson)) {
    return { digest: digest(parsed), bytes: Buffer.byteLength(parsed) };
  }
  const written = canonical(parsed, new Set());
  if (written === undefined) return 'body-unsupported';
  // Other formats have other bytes for the same value: {"a":"1"} and a=1 are two bodies.
  return { digest: digest(isJson ? written : `${type}\n${written}`), bytes: Buffer.byteLength(written) };
}

/**
 * A value as text: JSON where JSON can express it, and otherwise no valid JSON, so that two values never have the same
 * text. Undefined if the value cannot be compared completely.
 */
function canonical(value: any, above: Set<unknown>): string | undefined {
  switch (typeof value) {
    case 'string':
    case 'boolean':
      return JSON.stringify(value);
    case 'number':
      return Number.isFinite(value) && !Object.is(value, -0)
        ? JSON.stringify(value)
        : `number(${Object.is(value, -0) ? '-0' : value})`;
    case 'bigint':
      return `bigint(${value})`;
    case 'undefined':
      return 'undefined';
    case 'object':
      break;
    default:
      return undefined;
  }
  if (value === null) return 'null';
  if (above.has(value)) return undefined;
  above.add(value);
  try {
    return structured(value, (inner) => canonical(inner, above));
  } finally {
    above.delete(value);
  }
}

function structured(value: any, write: (value: unknown) => string | undefined): string | undefined {
  const list = (values: Iterable<unknown>, open: string, close: string) => {
    const written = Array.from(values, write);
    return written.includes(undefined) ? undefined : `${open}${written.join(',')}${close}`;
  };
  const prototype = Object.getPrototypeOf(value);
  if (Array.isArray(value)) return list(value, '[', ']');
  if (prototype === Object.prototype || prototype === null) {
    // An object that says itself how it is written hides the rest.
    if (typeof value.toJSON === 'function' || Object.getOwnPropertySymbols(value).length > 0) return undefined;
    const members = Object.entries(value).map(([name, member]) => {
      const written = write(member);
      return written === undefined ? undefined : `${JSON.stringify(name)}:${written}`;
    });
    return members.includes(undefined) ? undefined : `{${members.join(',')}}`;
  }
  if (value instanceof Map) return list(value, 'map(', ')');
  if (value instanceof Set) return list(value, 'set(', ')');
  if (value instanceof URLSearchParams) return list(value, 'parameters(', ')');
  if (value instanceof Date) return `date(${value.getTime()})`;
  if (value instanceof Uint8Array)
    return `bytes(${Buffer.from(value.buffer, value.byteOffset, value.byteLength).toString('base64')})`;
  return undefined;
}

/** The payload by which the database recognizes another request under the same key. */
export function payloadOf({ method, url }: Incoming, bodyDigest: string) {
  const [, path, query] = /^([^?]*)\??(.*)$/s.exec(url)!;
  return { method, path, query, body: bodyDigest };
}
