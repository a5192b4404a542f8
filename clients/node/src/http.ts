// The Idempotency-Key header, whatever the framework: what a request means, and which answer leaves, after COMMIT.

import { createHash } from 'node:crypto';
import { begin, type Connection, type Database } from './database.js';
import { InProgress, Interrupted, isRetryable, sqlstate } from './errors.js';
import { hold, type Lease, type Times } from './lease.js';
import { answered, lookup, Request, retry, type Answer } from './run.js';

export interface HttpOptions<Incoming = any> {
  /** Methods that are protected: POST and PATCH. Others are executed each time. */
  methods?: readonly string[];
  /** Whether a request without a key is refused: true. If not, it is executed each time. */
  required?: boolean;
  /** Whether the key has to be quoted, as the draft of the IETF says: false. */
  strict?: boolean;
  /** Who the caller is. The keys of two callers never meet. */
  identity?: (request: Incoming) => string | number | undefined;
  /** The most bytes of a body that is protected: a MiB. */
  maxBody?: number;
  /** What becomes of a body that is larger, of no told length, or that no parser has read: refuse, or pass unprotected. */
  unprotectable?: 'refuse' | 'pass';
  /** Seconds that a duplicate waits for the answer, without a connection: 0. */
  wait?: number;
  /** Seconds to try again in, after a lost connection and the like: 5. */
  deadline?: number;
  /** Headers that are recorded and replayed, in lower case. Set-Cookie never is. */
  headers?: readonly string[];
  /** Where the types of problems are explained: by default in the draft. */
  docs?: string;
  /** Seconds that the answer is kept: by default the ttl of the session. */
  ttl?: number;
  /** Seconds of a lease, for effects elsewhere: the handler gets the lease in the place of a connection. */
  lease?: number;
}

/** What a handler works with: the connection of the transaction; with the option `lease` the lease. */
export type Given<D, O> = O extends { lease: number } ? Lease : Connection<D>;

/** What a framework tells of a request. */
export interface Incoming {
  method: string;
  /** Path and query, as sent. */
  url: string;
  headers: Record<string, string | string[] | undefined>;
  /** As parsed; undefined if nobody has read it. */
  body: unknown;
  identity: string | number | undefined;
}

/** An answer that is complete, and has not left yet. */
export interface Outgoing {
  status: number;
  headers: [string, string][];
  body: Buffer;
  /** Whether the framework made it of an exception. */
  thrown?: boolean;
}

const HEADERS = ['content-type', 'content-encoding', 'content-language', 'content-disposition', 'location', 'etag',
  'last-modified', 'link'];
const DOCS = 'https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header';
const PROBLEMS = {
  'key-missing': [400, 'this request needs a header Idempotency-Key'],
  'key-malformed': [400, 'the header Idempotency-Key is not one string of 1 to 255 characters'],
  unknown: [404, 'nothing is known of a request with this key'],
  'in-progress': [409, 'the first request with this key is still at work: send it again later, unchanged'],
  interrupted: [409, 'the first request with this key stopped in the middle: somebody must look what happened'],
  superseded: [409, 'somebody else has taken over the request with this key: send it again later, unchanged'],
  cancelled: [410, 'the request with this key was cancelled, and never takes effect'],
  'length-required': [411, 'a body that is to be protected needs a Content-Length'],
  'body-too-large': [413, 'the body is too large to be protected'],
  'body-not-read': [415, 'nothing has read a body of this type, so it cannot be protected'],
  'key-reused': [422, 'the key was used for another request: a new request needs a new key'],
  unavailable: [503, 'nobody knows what was done: send it again, unchanged'],
} as const;
type Problem = keyof typeof PROBLEMS;

export function problem(name: Problem, { docs = DOCS }: HttpOptions): Outgoing {
  const [status, title] = PROBLEMS[name];
  const headers: [string, string][] = [['content-type', 'application/problem+json'], ['link', `<${docs}>; rel="describedby"`]];
  if (status === 409 || status === 503) headers.push(['retry-after', '1']);
  return { status, headers, body: Buffer.from(JSON.stringify({ type: `${docs}#${name}`, title, status })) };
}

/** The key in the header: a quoted string of RFC 8941, whose parameters say nothing here, or a bare string. */
export function keyOf(header: string, strict = false): string | undefined {
  const quoted = /^"((?:[ !#-[\]-~]|\\["\\])*)" *(?:; *[a-z*][a-z0-9_.*-]*(?:=[!#-+\--:<-~]+)? *)*$/.exec(header.trim());
  const key = quoted ? quoted[1]!.replace(/\\(.)/g, '$1') : strict ? '' : (/^[!#-+\--:<-~]+$/.exec(header.trim())?.[0] ?? '');
  return key.length >= 1 && key.length <= 255 ? key : undefined;
}

const digest = (value: string | Buffer) => createHash('sha256').update(value).digest('hex');

/** The name of the request in its session, which people on call can read: the caller, a colon, the key. */
export function nameOf(caller: string, key: string): string {
  let who = caller.replace(/[^A-Za-z0-9@._-]/gu, (character) =>
    [...Buffer.from(character)].map((byte) => `%${byte.toString(16).toUpperCase().padStart(2, '0')}`).join(''),
  );
  if (who.length > 100) who = `~${digest(caller)}`;
  const name = `${who}:${key}`;
  return name.length <= 255 ? name : `${who}~:${digest(key)}:${key}`.slice(0, 255);
}

/** The name of the request; or a problem; or nothing, if there is no key. */
function named(incoming: Incoming, options: HttpOptions): string | Outgoing | undefined {
  const header = incoming.headers['idempotency-key'];
  if (header === undefined) return undefined;
  const key = keyOf(String(header), options.strict);
  return key === undefined ? problem('key-malformed', options) : nameOf(String(incoming.identity ?? ''), key);
}

/** The request as it is named and compared; a problem; or nothing, if it is not protected. */
function protect(session: string, incoming: Incoming, options: HttpOptions): Request | Outgoing | undefined {
  const { methods = ['POST', 'PATCH'], required = true, maxBody = 1 << 20, unprotectable = 'refuse' } = options;
  if (!methods.includes(incoming.method)) return undefined;
  const name = named(incoming, options);
  if (name === undefined) return required ? problem('key-missing', options) : undefined;
  if (typeof name !== 'string') return name;
  const { 'content-length': length = '0', 'content-type': type, 'transfer-encoding': encoding } = incoming.headers;
  const unread = incoming.body === undefined || /^multipart\//i.test(String(type));
  const fault = encoding !== undefined ? 'length-required'
    : Number(length) > maxBody ? 'body-too-large' : Number(length) > 0 && unread ? 'body-not-read' : undefined;
  if (fault) return unprotectable === 'pass' ? undefined : problem(fault, options);
  const body = incoming.body ?? '';
  const asked = digest(Buffer.isBuffer(body) || typeof body === 'string' ? body : JSON.stringify(body));
  const [, path, query] = /^([^?]*)\??(.*)$/s.exec(incoming.url)!;
  return new Request(session, name, { method: incoming.method, path, query, body: asked }, 0);
}

const isFinal = ({ status }: Outgoing) => status >= 200 && status < 500 && ![408, 409, 425, 429].includes(status);

/** What is recorded of an answer. */
function recorded({ status, headers, body }: Outgoing, { headers: kept = HEADERS }: HttpOptions): string {
  const told = headers.filter(([name]) => kept.includes(name) && name !== 'set-cookie');
  const string = body.toString();
  const readable = !string.includes('\0') && Buffer.from(string).equals(body);
  return JSON.stringify({ status, headers: told, ...(readable ? { body: string } : { base64: body.toString('base64') }) });
}

function replay(answer: Answer, options: HttpOptions): Outgoing {
  if (answer.status === 'cancelled') return problem('cancelled', options);
  // Given up after too many attempts, or no answer of an adapter.
  if (!Array.isArray(answer.response?.headers)) return problem('interrupted', options);
  const { status, headers, body, base64 } = answer.response;
  const bytes = base64 === undefined ? Buffer.from(body ?? '') : Buffer.from(base64, 'base64');
  return { status, headers: [...headers, ['idempotent-replayed', 'true']], body: bytes };
}

/** What an error of the client or of the server says to the caller. Others are the framework's. */
function explained(error: unknown, options: HttpOptions): Outgoing {
  const states: Record<string, Problem> = { ID001: 'key-reused', ID005: 'superseded' };
  const name = error instanceof InProgress ? 'in-progress' : error instanceof Interrupted ? 'interrupted'
    : states[sqlstate(error) ?? ''] ?? (isRetryable(error) && 'unavailable');
  if (!name) throw error;
  if (name === 'unavailable') console.error('idempotence: a request is answered with 503:', error);
  return problem(name, options);
}

/** The answer that may leave. `handle` calls the handler, and gives what it answers; what is worth another attempt it throws. */
export async function serve(
  database: Database, session: string, incoming: Incoming, options: HttpOptions, handle: (given: any) => Promise<Outgoing>,
): Promise<Outgoing> {
  const { deadline = 5, wait = 0, lease } = options;
  const request = protect(session, incoming, options);
  // Who sent no key, or a body that is not kept, cannot be asked a second time.
  if (request === undefined) return lease ? handle(undefined) : inTransaction(database, undefined, options, handle);
  if (!(request instanceof Request)) return request;
  try {
    if (lease) return await leased(database, request, { length: lease, deadline, patience: wait }, options, handle);
    return await retry(deadline, () => inTransaction(database, request, options, handle), wait);
  } catch (error) {
    return explained(error, options);
  }
}

async function inTransaction(
  database: Database, request: Request | undefined, options: HttpOptions, handle: (conn: any) => Promise<Outgoing>,
): Promise<Outgoing> {
  // A pool may have a connection that was lost. Who has a request comes here again.
  const transaction = await (request ? begin(database) : retry(options.deadline ?? 5, () => begin(database)));
  try {
    const earlier = request && answered(request, await request.begin(transaction));
    if (earlier) {
      await transaction.commit();
      return replay(earlier, options);
    }
    await transaction.guard();
    const answer = await handle(transaction.conn);
    if (!isFinal(answer)) return answer;
    const record = () => request?.record(transaction, recorded(answer, options), answer.status >= 400, options.ttl);
    try {
      await (answer.thrown ? transaction.undo() : transaction.leave());
      await record();
    } catch (error) {
      // An error of the database that the handler has caught took the effects back; a refusal may be recorded all the same.
      if (answer.thrown || answer.status < 400) throw error;
      await transaction.undo();
      await record();
    }
    await transaction.commit();
    return answer;
  } finally {
    await transaction.rollback();
  }
}

async function leased(
  database: Database, request: Request, times: Times, options: HttpOptions, handle: (lease: Lease) => Promise<Outgoing>,
): Promise<Outgoing> {
  let answer: Outgoing | undefined;
  const earlier = await hold(database, request, async (held) => {
    answer = await handle(held);
    // What is not final leaves the lease to run out: nobody knows what was done elsewhere.
    if (isFinal(answer)) await held.record(JSON.parse(recorded(answer, options)), { failed: answer.status >= 400 });
  }, times);
  return answer ?? replay(earlier!, options);
}

/** Tells the answer of a request that is named by its key, and never executes it. */
export async function tell(database: Database, session: string, incoming: Incoming, options: HttpOptions): Promise<Outgoing> {
  const name = named(incoming, options) ?? problem('key-missing', options);
  if (typeof name !== 'string') return name;
  try {
    return await retry(options.deadline ?? 5, async () => {
      const ticket = await lookup(database, session, name, { deadline: 0 });
      if (ticket.status === 'in_progress') throw new InProgress(name, ticket.expiresAt);
      if (ticket.status === 'suspended') throw new Interrupted(name, ticket.point, ticket.state);
      if (ticket.status === 'not_here') return problem('unavailable', options);
      if (!/^(succeeded|failed|cancelled)$/.test(ticket.status)) return problem('unknown', options);
      return replay({ ...ticket, failed: ticket.status === 'failed' } as Answer, options);
    }, options.wait ?? 0);
  } catch (error) {
    return explained(error, options);
  }
}
