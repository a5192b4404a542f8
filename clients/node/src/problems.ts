// Problem documents (RFC 9457): what the adapter itself answers. docs/http.md explains each type.

import type { Outgoing } from './outgoing.js';

const DOCS = 'https://pgxn.org/dist/idempotence/docs/http.html';

const PROBLEMS = {
  'key-missing': [400, 'this request needs a header Idempotency-Key',
    'Send a header Idempotency-Key with a key that is new for each request and the same for its retries.'],
  'key-malformed': [400, 'the header Idempotency-Key is not one string of 1 to 255 characters',
    'Send one key of 1 to 255 visible ASCII characters, such as a UUID.'],
  'body-incomplete': [400, 'the body of the request is incomplete',
    'Fewer bytes arrived than were announced. Nothing was executed. Send the request again.'],
  unknown: [404, 'nothing is known of a request with this key',
    'The request was not executed, or its answer is no longer kept.'],
  'in-progress': [409, 'the first request with this key is still at work: send it again later, unchanged',
    'Retry-After says when to send the same request again, with the same key and body.'],
  interrupted: [409, 'the first request with this key stopped in the middle: somebody must look what happened',
    'Some of its effects may have happened. A retry does not execute the request.'],
  superseded: [409, 'somebody else has taken over the request with this key: send it again later, unchanged',
    'The lease of this attempt was taken over. A retry gets the answer of the attempt that took over.'],
  cancelled: [410, 'the request with this key was cancelled, and never takes effect',
    'Send a new request with a new key, if it is still wanted.'],
  'body-too-large': [413, 'the body is too large to be protected',
    'The body is larger than this route compares (the option maxBody).'],
  'body-unsupported': [415, 'a body of this type cannot be protected',
    'The adapter cannot compare the whole body: no parser has read it, or it is multipart or a stream.'],
  'key-reused': [422, 'the key was used for another request: a new request needs a new key',
    'The method, path, query or body differs from the first request with this key.'],
  'response-too-large': [500, 'the response is too large to be recorded',
    'The response exceeds the setting idempotence.max_response. Nothing was kept.'],
  unavailable: [503, 'nobody knows what was done: send it again, unchanged',
    'The request was not answered in time. Send it again, with the same key and body: the answer to it will be definite.'],
} as const;
export type Problem = keyof typeof PROBLEMS;

export function problem(name: Problem, docs = DOCS, found?: string): Outgoing {
  const [status, title, detail] = PROBLEMS[name];
  const headers: [string, string][] = [['content-type', 'application/problem+json'], ['link', `<${docs}>; rel="describedby"`]];
  if (status === 409 || status === 503) headers.push(['retry-after', '1']);
  const document = { type: `${docs}#${name}`, title, status, detail: found ?? detail };
  return { status, headers, body: Buffer.from(JSON.stringify(document)) };
}
