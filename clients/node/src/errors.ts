// The errors that this client raises, and the rule which errors of a database are worth another attempt.

/**
 * Thrown by the work: the request has failed for good. The failure is recorded together with everything written before
 * it.
 */
export class Final extends Error {
  override readonly name = 'Final';

  constructor(readonly response: unknown) {
    super('the request has failed for good');
  }
}

/** Another process held the request until the deadline. Send the request again later, with the same key and payload. */
export class InProgress extends Error {
  override readonly name = 'InProgress';

  /** `expiresAt`: when the lease of the holder expires; null if the holder has a transaction and no lease. */
  constructor(
    key: string,
    readonly expiresAt: Date | null,
  ) {
    super(`request ${key} is still in progress`);
  }
}

/**
 * Another process stopped in the middle of the request. Nothing was begun: take a lease, and check first what happened.
 */
export class Interrupted extends Error {
  override readonly name = 'Interrupted';

  constructor(
    key: string,
    readonly point: string | null,
    readonly state: unknown,
  ) {
    super(
      `request ${key} was interrupted${point === null ? '' : ` at checkpoint ${point}`}: ` +
        'check which of its effects happened',
    );
  }
}

/**
 * The block of a lease ended without a record and without a release. The lease expires, and the next begin takes over.
 */
export class Unrecorded extends Error {
  override readonly name = 'Unrecorded';

  constructor(key: string) {
    super(
      `the block of request ${key} ended without record() or release(): ` +
        'record its outcome, or release it if nothing happened',
    );
  }
}

/** An attempt failed because of its own connection, or because the server asked for another attempt. */
export class Again extends Error {
  override readonly name = 'Again';
  override readonly cause: unknown;

  constructor(cause: unknown) {
    super('the attempt is worth repeating');
    this.cause = cause;
  }
}

/**
 * The SQLSTATE of an error that the server or a pooler has reported. For an error of PgBouncer, postgres.js sets
 * `severity_local` only.
 */
export function sqlstate(error: any): string | undefined {
  return (error?.severity ?? error?.severity_local) === undefined ? undefined : error.code;
}

// What the drivers report for a connection that was lost or could not be made. An error of another socket, such as the
// ECONNRESET of a payment processor, has the same codes: ask only about errors of the connection in question.
const NETWORK = /^(ECONN(REFUSED|RESET|ABORTED)|EPIPE|ETIMEDOUT|E(HOST|NET)UNREACH|ENOTFOUND|EAI_AGAIN)$/;
const POSTGRES_JS = /^(CONNECTION_(CLOSED|DESTROYED|ENDED)|CONNECT_TIMEOUT)$/;
const PG = /^(Connection terminated|Client has encountered a connection error|Client was closed|timeout exceeded)/;

/** Whether the same request may be sent again after this error of the database, with the same key and payload. */
export function isRetryable(error: any): boolean {
  const state = sqlstate(error);
  if (state !== undefined) return /^(08|25P03|40001|40P01|53|55P03|57P0[1-35])/.test(state);
  if (error instanceof InProgress) return true;
  const { code, message, syscall } = Object(error);
  if (code === undefined) return PG.test(message);
  return NETWORK.test(code) || POSTGRES_JS.test(code) || syscall === 'connect';
}
