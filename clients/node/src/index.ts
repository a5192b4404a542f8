export { check, type Problems } from './check.js';
export { Client, type ClientOptions } from './client.js';
export { complete, type CompleteOptions } from './complete.js';
export type { Connection, Database } from './database.js';
export { Final, InProgress, Interrupted, isRetryable, Unrecorded } from './errors.js';
export { lease, type Lease, type LeaseOptions } from './lease.js';
export type { Answer, Key, Options, Ticket } from './request.js';
export { lookup, once, run, type RunOptions } from './run.js';
