// One attempt at a request: a transaction on a connection of its own. BEGIN travels with the begin of the request, and
// COMMIT with its record, so that the work's own statements are the only ones that take further round trips.

import { connect, type Database, type Link, type Result, type Watch } from './database.js';
import { Again, isRetryable, sqlstate } from './errors.js';

const ENDED = 'the transaction of this request has ended; finish all work on its connection before the answer';
const NOT_YOURS = 'the handler must not commit or roll back: the adapter commits after the answer is recorded';

/** An error of the transaction's own connection; worth another attempt if the server or the network says so. */
function own(error: unknown): unknown {
  return isRetryable(error) ? new Again(error) : error;
}

export class Transaction {
  #link!: Link;
  #over = false;
  #released = false;
  // The error that has spoilt the transaction. What the server reports after it (25P02) is a consequence.
  #spoilt: unknown;

  static async open(database: Database): Promise<Transaction> {
    const transaction = new Transaction();
    const watch: Watch = {
      refusal: () => transaction.#refusal(),
      // The driver reports the loss of the connection by the error of a statement first.
      failed: (error) => void (transaction.#spoilt ??= sqlstate(error) || isRetryable(error) ? error : undefined),
      // ROLLBACK TO SAVEPOINT has the same tag as ROLLBACK.
      succeeded: (command) => void (command === 'ROLLBACK' && (transaction.#spoilt = undefined)),
    };
    try {
      transaction.#link = await connect(database, watch);
    } catch (error) {
      throw own(error);
    }
    return transaction;
  }

  /** What the work is given. */
  get conn(): any {
    return this.#link.conn;
  }

  /** Whether what happened to the connection, and not the work, is the reason for another attempt. */
  get retryable(): boolean {
    return this.#link.lost !== undefined || isRetryable(this.#spoilt);
  }

  #refusal(): Error | undefined {
    if (this.#over) return new Error(ENDED);
    return this.#link.lost;
  }

  /** Sends statements in one message. */
  async #send(sql: string, send: (sql: string) => Promise<Result[]>): Promise<Result[]> {
    try {
      if (this.#link.lost) throw this.#link.lost;
      return await send(sql);
    } catch (error) {
      throw this.#explained(error);
    }
  }

  #explained(error: any): unknown {
    const state = sqlstate(error);
    if (state === '25P02' && this.#spoilt) {
      // The error which the work has caught says what to repair; whether to try again depends on it, too.
      error.cause ??= this.#spoilt;
      return isRetryable(this.#spoilt) ? new Again(this.#spoilt) : error;
    }
    // Neither begun nor recorded: the work has ended the transaction. The savepoint is missing where no request was
    // begun.
    if (state === 'ID007' || state === 'ID008' || state === '25P01' || state === '3B001') {
      return Object.assign(new Error(NOT_YOURS, { cause: error }), { code: state });
    }
    return this.#link.lost ? new Again(error) : own(error);
  }

  send(sql: string): Promise<Result[]> {
    return this.#send(sql, (text) => this.#link.send(text));
  }

  /** Sends the last statements and COMMIT in one message. It is committed if COMMIT's own answer says so. */
  async commit(last = ''): Promise<void> {
    const results = await this.#send(`${last}COMMIT`, (text) => {
      this.#over = true;
      return this.#link.sendLast(text);
    });
    this.#released = true;
    this.#link.release();
    // In a transaction that was aborted, COMMIT is no error: its tag is ROLLBACK.
    if (results.at(-1)?.command !== 'COMMIT') {
      throw this.#spoilt ?? new Error('the transaction was aborted, and COMMIT rolled it back');
    }
  }

  /** Ends a transaction that has only read, without waiting for the answer. */
  leave() {
    this.#over = true;
    this.#released = true;
    this.#link.sendLast('COMMIT').then(
      () => this.#link.release(),
      () => this.#link.close(),
    );
  }

  /** Ends the transaction, whatever has happened. Never fails. */
  async rollback(): Promise<void> {
    if (this.#released) return;
    this.#over = true;
    this.#released = true;
    if (this.#link.lost) return this.#link.close();
    await this.#link.sendLast('ROLLBACK').then(
      () => this.#link.release(),
      () => this.#link.close(),
    );
  }

  /** Ends the transaction at once: the connection is closed, even while a statement is being executed. */
  abort() {
    if (this.#released) return;
    this.#over = true;
    this.#released = true;
    this.#link.close();
  }

  /** The error of the server that the work met on this connection, whatever it made of it. */
  explain(error: any): unknown {
    return sqlstate(error) === 'ID007' || sqlstate(error) === 'ID008' ? this.#explained(error) : error;
  }
}
