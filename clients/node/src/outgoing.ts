// An answer that is complete and has not been sent yet; how it is recorded, and replayed.

export interface Outgoing {
  status: number;
  /** A header that occurs several times has several entries. */
  headers: [string, string][];
  body: Buffer;
  /** Whether the framework made it of an exception: then the effects are taken back. */
  thrown?: boolean;
}

/** What a handler that returns its answer returns. */
export interface Returned {
  /** Default: 200. */
  status?: number;
  headers?: Record<string, string | number | readonly string[]>;
  /** An object, an array, a number, a boolean or null is sent as JSON; a string as text; bytes as they are. */
  body?: unknown;
}

/** The headers that are recorded and replayed. Set-Cookie never is. */
export const HEADERS = [
  'content-type',
  'content-encoding',
  'content-language',
  'content-disposition',
  'location',
  'etag',
  'last-modified',
  'link',
  'retry-after',
];

/** A trailer is computed while the body is sent. A replay would lack it. */
export const TRAILERS = 'trailers cannot be recorded';

// Refused, and not recorded: the same request may be answered differently later.
const NOT_FINAL = [401, 405, 407, 408, 409, 415, 425, 429];

/** Whether the answer is kept. Otherwise a retry executes the request. */
export const isFinal = ({ status }: Outgoing) => status >= 200 && status < 500 && !NOT_FINAL.includes(status);

/** Checks what the server would refuse when the answer is sent, which is after COMMIT. */
export function checkSendable({ status, headers }: Outgoing) {
  if (!Number.isInteger(status) || status < 200 || status > 599) {
    throw new RangeError(`the handler answered with the status ${status}; expected 200 to 599`);
  }
  for (const [name, value] of headers) {
    if (name === 'trailer') throw new Error(TRAILERS);
    if (!/^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/.test(name))
      throw new TypeError(`${JSON.stringify(name)} is no name of a header`);
    if (/[^\t\x20-\x7e\x80-\xff]/.test(value)) {
      throw new TypeError(`the value of the header ${name} contains a character that headers cannot contain`);
    }
  }
}

/** The headers of a response of Node, in every form in which it keeps them. */
export function headersOf(headers: Record<string, unknown>): [string, string][] {
  return Object.entries(headers).flatMap(([name, value]) =>
    (Array.isArray(value) ? value : [value])
      .filter((one) => one !== undefined)
      .map((one): [string, string] => [name.toLowerCase(), String(one)]),
  );
}

/** The headers by their names: a string, or an array for a header that occurs several times. */
export function byName(headers: readonly [string, string][]): Map<string, string | string[]> {
  const found = new Map<string, string | string[]>();
  for (const [name, value] of headers) {
    const earlier = found.get(name);
    found.set(name, earlier === undefined ? value : [...(Array.isArray(earlier) ? earlier : [earlier]), value]);
  }
  return found;
}

/** What is recorded of an answer: jsonb, which has no character 0. */
export function recorded({ status, headers, body }: Outgoing, kept: readonly string[] = HEADERS): string {
  const names = kept.map((name) => name.toLowerCase());
  const told = headers.filter(([name]) => names.includes(name) && name !== 'set-cookie');
  const string = body.toString();
  const readable = !string.includes('\0') && Buffer.from(string).equals(body);
  return JSON.stringify({
    status,
    headers: told,
    ...(readable ? { body: string } : { base64: body.toString('base64') }),
  });
}

/** What a completer returns so that a route replays it: an answer in the form in which the adapters record theirs. */
export function recordable(answer: Returned, { headers }: { headers?: readonly string[] } = {}): unknown {
  return JSON.parse(recorded(outgoing(answer), headers));
}

/** An answer of an adapter, as it was recorded. */
export function replayed({ status, headers, body, base64 }: any): Outgoing {
  const bytes = base64 === undefined ? Buffer.from(body ?? '') : Buffer.from(base64, 'base64');
  return { status, headers: [...headers, ['idempotent-replayed', 'true']], body: bytes };
}

/** The answer that a handler has returned. */
export function outgoing(returned: unknown): Outgoing {
  if (typeof returned !== 'object' || returned === null || Object.getPrototypeOf(returned) !== Object.prototype) {
    throw new TypeError('the handler must return its answer: { status, headers, body }');
  }
  for (const name of Object.keys(returned)) {
    if (!/^(status|headers|body)$/.test(name))
      throw new TypeError(`an answer has a status, headers and a body, and no ${name}`);
  }
  const { status = 200, headers = {}, body } = returned as Returned;
  const lines = headersOf(headers);
  const [bytes, type] = encoded(body);
  if (type !== undefined && !lines.some(([name]) => name === 'content-type')) lines.push(['content-type', type]);
  return { status, headers: lines, body: status === 204 || status === 304 ? Buffer.alloc(0) : bytes };
}

function encoded(body: any): [Buffer, string | undefined] {
  if (body === undefined) return [Buffer.alloc(0), undefined];
  if (typeof body === 'string') return [Buffer.from(body), 'text/plain; charset=utf-8'];
  if (ArrayBuffer.isView(body))
    return [Buffer.from(body.buffer, body.byteOffset, body.byteLength), 'application/octet-stream'];
  if (
    typeof body?.pipe === 'function' ||
    typeof body?.getReader === 'function' ||
    typeof body === 'function' ||
    (body !== null && Symbol.asyncIterator in Object(body))
  ) {
    throw new TypeError('the body of an answer is complete before COMMIT, so it cannot be a stream: return the bytes');
  }
  const json = JSON.stringify(body);
  if (json === undefined) throw new TypeError(`a body of type ${typeof body} cannot be sent`);
  return [Buffer.from(json), 'application/json; charset=utf-8'];
}
