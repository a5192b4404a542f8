export { check } from './check.js';
export { Client, type ClientOptions } from './client.js';
export type { Connection, Database } from './database.js';
export { Final, InProgress, Interrupted, isRetryable } from './errors.js';
export { lease, Lease, type LeaseOptions } from './lease.js';
export { lookup, once, run, type Answer, type Key, type Options, type RunOptions, type Ticket } from './run.js';
