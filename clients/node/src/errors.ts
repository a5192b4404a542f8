// What a client raises of its own, and which errors are worth another attempt.

/** Thrown by the work: the request has failed for good. The failure is recorded, with all that was written before it. */
export class Final extends Error {
  override readonly name = 'Final';

  constructor(readonly response: unknown) {
    super('the request has failed for good');
  }
}

/** Somebody else had the request until the deadline. It may be sent again later, with the same key and payload. */
export class InProgress extends Error {
  override readonly name = 'InProgress';

  /** `expiresAt`: when the lease of whoever has it runs out; null if it is no lease. */
  constructor(key: string, readonly expiresAt: Date | null) {
    super(`request ${key} is still in progress`);
  }
}

/** Somebody has left the request in the middle. Nothing was begun: whoever goes on takes a lease, and looks first. */
export class Interrupted extends Error {
  override readonly name = 'Interrupted';

  constructor(key: string, readonly point: string | null, readonly state: unknown) {
    super(`request ${key} was left in the middle${point === null ? '' : `, at ${point}`}: look how far it got`);
  }
}

/** The SQLSTATE of an error of the server. */
export function sqlstate(error: any): string | undefined {
  return error?.severity === undefined ? undefined : error.code;
}

/** Whether the same request may be sent again, with the same key and payload. */
export function isRetryable(error: any): boolean {
  const state = sqlstate(error);
  if (state !== undefined) return /^(08|25P03|40001|40P01|53|55P03|57P0[1-35])/.test(state);
  // A connection was lost, or there was none to be had. Some errors of pg have no code.
  const { code, message } = Object(error);
  if (code !== undefined) return /^(E[A-Z]+|CONNECTION_(CLOSED|DESTROYED)|CONNECT_TIMEOUT)$/.test(code);
  return error instanceof InProgress || /^(Connection terminated|Client has encountered a conn|timeout ex)/.test(message);
}
