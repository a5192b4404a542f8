// Problem documents (RFC 9457): what the adapter itself answers. docs/http.md explains each type.

import type { Outgoing } from './outgoing.js';

const DOCS = 'https://pgxn.org/dist/idempotence/docs/http.html';

const PROBLEMS = {
  'key-missing': [
    400,
    'This request needs an idempotency key',
    'Send the header Idempotency-Key with a new key for each new request, and the same key with each retry.',
  ],
  'key-malformed': [
    400,
    'The idempotency key is malformed',
    'The header Idempotency-Key must be sent once and contain one string of 1 to 255 visible ASCII characters.',
  ],
  'body-incomplete': [
    400,
    'The body is incomplete',
    'Fewer bytes arrived than Content-Length announces. Nothing was executed. Send the request again, unchanged.',
  ],
  unknown: [404, 'The request is unknown', 'No request with this key is known.'],
  'in-progress': [
    409,
    'The request is in progress',
    'The first request with this key has not been answered yet. Send the request again later, unchanged.',
  ],
  interrupted: [
    409,
    'The request was interrupted',
    'The first request with this key stopped in the middle. It has to be taken over before it can be answered.',
  ],
  superseded: [
    409,
    'The request was taken over',
    'Another process has taken over the request with this key. Send the request again later, unchanged.',
  ],
  cancelled: [
    410,
    'The request was cancelled',
    'The request with this key was cancelled before it was executed. It never takes effect.',
  ],
  'body-too-large': [413, 'The body is too large', 'The body is larger than the limit of this route.'],
  'body-unsupported': [
    415,
    'The body cannot be compared',
    'The server cannot compare this body with the body of a retry. Nothing was executed.',
  ],
  'key-reused': [
    422,
    'The idempotency key was used for another request',
    'The method, the path, the query or the body differs from those of the first request with this key. ' +
      'A new request needs a new key.',
  ],
  'response-too-large': [
    500,
    'The response is too large to be recorded',
    'The limit is the setting idempotence.max_response of the database. The effects of the request were rolled back.',
  ],
  unavailable: [
    503,
    'The service is unavailable',
    'It is not known whether the request took effect. Send the request again, unchanged.',
  ],
} as const;
export type Problem = keyof typeof PROBLEMS;

/** `found`: what is known of this request beyond the detail. */
export function problem(name: Problem, docs = DOCS, found?: string): Outgoing {
  const [status, title, detail] = PROBLEMS[name];
  const headers: [string, string][] = [
    ['content-type', 'application/problem+json'],
    ['link', `<${docs}>; rel="describedby"`],
  ];
  if (status === 409 || status === 503) headers.push(['retry-after', '1']);
  const document = { type: `${docs}#${name}`, title, status, detail: found ? `${found} ${detail}` : detail };
  return { status, headers, body: Buffer.from(JSON.stringify(document)) };
}
