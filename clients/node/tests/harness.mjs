// What the tests share: drivers, a wire that can be cut, and the steps that both files of vectors have.

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import net from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import postgres from 'postgres';

const {
  PGHOST: host,
  PGPORT: port = '5432',
  PGUSER: superuser = 'postgres',
  PGDATABASE: database = 'postgres',
} = process.env;
/** The role of the cases. */
export const server = { host, port: Number(port), user: 'client_owner', database };

/** Makes the roles and the empty database, by the superuser, and what the file of vectors wants. */
export async function prepare({ setup }) {
  const client = new pg.Client({ ...server, user: superuser });
  await client.connect();
  try {
    // Test files run side by side.
    await client.query("SELECT pg_advisory_lock(hashtext('client_owner'))");
    for (const role of ['client_owner', 'client_stranger', 'client_nobody']) {
      await client.query(`DO $$ BEGIN CREATE ROLE ${role} LOGIN; EXCEPTION WHEN duplicate_object THEN END $$`);
      if (role !== 'client_nobody') await client.query(`SELECT idem_grant('${role}')`);
    }
    await client.query("SELECT idem_grant('client_owner', 'admin')");
    await client.query('GRANT CREATE ON SCHEMA public TO client_owner');
    const { rowCount } = await client.query("SELECT FROM pg_database WHERE datname = 'client_empty'");
    if (rowCount === 0) {
      await client.query('CREATE DATABASE client_empty');
      if (!process.env.IDEM_MANAGED) await hide(client);
    }
    await client.query('SET SESSION AUTHORIZATION client_owner');
    for (const text of setup) await client.query(text);
  } finally {
    await client.end();
  }
}

/** The extension in a schema that no role was granted. */
async function hide(client) {
  await client.query('CREATE DATABASE client_hidden');
  await client.query('ALTER DATABASE client_hidden SET search_path = public, hidden');
  const there = new pg.Client({ ...server, user: superuser, database: 'client_hidden' });
  await there.connect();
  await there.query('CREATE SCHEMA hidden; CREATE EXTENSION idempotence SCHEMA hidden').finally(() => there.end());
}

const pooler = process.env.IDEM_POOLER && { host: process.env.IDEM_POOLER, port: 6432 };

/** A pool that does nothing but what a driver does by itself, for each driver. IDEM_POOLER: the socket of PgBouncer. */
export const drivers = {
  pg(options = {}) {
    const { max = 4, ...rest } = options;
    const pool = new pg.Pool({ ...server, ...pooler, max, ...rest });
    pool.on('error', () => {});
    return pool;
  },
  postgres(options = {}) {
    const { max = 4, ...rest } = options;
    // PgBouncer before 1.21 does not know prepared statements.
    return postgres({ ...server, ...pooler, prepare: !pooler, max, onnotice() {}, backoff: () => 0.2, ...rest });
  },
};
/** postgres.js waits without end where a connection was cut. */
export const end = (pool) => pool.end(typeof pool === 'function' ? { timeout: 1 } : undefined);

/** Waits until every connection of a pool of pg is back. A replay is answered before its transaction has ended. */
export async function idle(pool) {
  for (let n = 0; pool.idleCount < pool.totalCount && n < 200; n++) await sleep(10);
  assert.equal(pool.idleCount, pool.totalCount, 'idle connections');
  for (const { client } of pool._idle) {
    assert.equal(client.listenerCount('error'), 1, 'listeners');
  }
}

/** Runs a statement on what a driver lends, and gives its rows. */
export async function ask(conn, text, values = []) {
  if (typeof conn === 'function') return conn.unsafe(text, values);
  const result = await conn.query(text, values);
  return (Array.isArray(result) ? result.at(-1) : result).rows;
}

export function vectors(file) {
  return JSON.parse(readFileSync(new URL(`../../${file}`, import.meta.url), 'utf8'));
}

/** The cases, each with its own `run` and, once for each, its `each`. */
export function* cases({ cases }, has) {
  for (const one of cases) {
    if ((one.needs ?? []).some((need) => !has.includes(need))) continue;
    for (const each of one.each ?? [undefined]) {
      const run = Array.from({ length: 12 }, () => Math.floor(Math.random() * 36).toString(36)).join('');
      const filled = (value) => {
        if (typeof value === 'string') {
          if (value === '{each}') return typeof each === 'string' ? each.replaceAll('{run}', run) : each;
          return value
            .replaceAll('{each}', typeof each === 'string' ? each : JSON.stringify(each))
            .replaceAll('{run}', run);
        }
        if (Array.isArray(value)) return value.map(filled);
        if (value === null || typeof value !== 'object') return value;
        return Object.fromEntries(Object.entries(value).map(([name, member]) => [filled(name), filled(member)]));
      };
      yield { run, ...filled({ ...one, each: null }) };
    }
  }
}

/** The superuser's side of a case: statements, connections with a name, what goes on in the background. */
export class Stage {
  #connections = new Map();
  #background = [];

  constructor(run) {
    this.run = run;
  }

  async connection(name = '') {
    if (!this.#connections.has(name)) {
      const client = new pg.Client(server);
      client.on('error', () => {});
      this.#connections.set(name, client);
      await client.connect();
    }
    return this.#connections.get(name);
  }

  /** The rows of the last statement, each an array. */
  async sql(text, on) {
    const result = await (await this.connection(on)).query({ text, rowMode: 'array' });
    return (Array.isArray(result) ? result.at(-1) : result).rows;
  }

  /** Does one of the steps that both files have, or says that it is none. */
  async step(step) {
    if (step.until !== undefined) {
      for (let n = 0; !(await this.sql(step.until))[0][0]; n++) {
        assert.ok(n < 500, `never came: ${step.until}`);
        await sleep(20);
      }
    } else if (step.sleep !== undefined) {
      await sleep(step.sleep * 1000);
    } else if (step.sql !== undefined) {
      if (step.after !== undefined) {
        this.#background.push(sleep(step.after * 1000).then(() => this.sql(step.sql, step.on)));
      } else {
        same(await this.sql(step.sql, step.on), step.rows);
      }
    } else {
      return false;
    }
    return true;
  }

  async terminate(pid) {
    await this.sql(`SELECT pg_terminate_backend(${pid}, 5000)`);
    await sleep(20);
  }

  async end(effects) {
    await Promise.all(this.#background);
    if (effects !== undefined) {
      const [[count]] = await this.sql(`SELECT count(*)::int FROM client_effect WHERE run = '${this.run}'`);
      assert.equal(count, effects, 'effects');
    }
  }

  async close() {
    await Promise.all([...this.#connections.values()].map((client) => client.end().catch(() => {})));
  }
}

function same(rows, expected) {
  if (expected === undefined) return;
  const found = rows.map((row) => Object.values(row));
  const told = expected.map((row) =>
    row.map((value, i) => (typeof value === 'number' ? coerced(found, value, i) : value)),
  );
  assert.deepEqual(found, told);
}

// pg gives a bigint as text.
const coerced = (found, value, i) => (typeof found[0]?.[i] === 'string' ? String(value) : value);

/** What the user's function does: its n-th list of actions at its n-th call. */
export class Work {
  calls = 0;

  constructor(stage, lists, more = {}) {
    this.stage = stage;
    this.lists = lists;
    this.more = more;
  }

  async do(conn) {
    const list = this.lists[Math.min(this.calls++, this.lists.length - 1)] ?? [];
    return this.actions(list, conn);
  }

  async actions(list, conn) {
    for (let action of list) {
      if (action.each !== undefined) action = { [action.each]: true };
      const [name] = Object.keys(action);
      if (name === 'return') return action.return;
      const result = await (this.more[name] ?? this[name]).call(this, action, conn);
      if (result !== undefined) return result;
    }
  }

  async effect({ effect }, conn) {
    await ask(conn, `INSERT INTO client_effect VALUES ('${this.stage.run}', ${effect})`);
  }

  async sql({ sql, rows }, conn) {
    same(await ask(conn, sql), rows);
  }

  async sleep({ sleep: seconds }) {
    await sleep(seconds * 1000);
  }

  async terminate(_, conn) {
    const [{ pid }] = await ask(conn, 'SELECT pg_backend_pid() AS pid');
    await this.stage.terminate(pid);
  }

  async caught({ caught }, conn) {
    await assert.rejects(Promise.resolve(ask(conn, caught)));
  }

  /** An error of another connection, with the same driver. */
  async foreign({ foreign }, conn) {
    const open = drivers[typeof conn === 'function' ? 'postgres' : 'pg'];
    const other = open(foreign === 'unreachable' ? { host: '127.0.0.1', port: 1 } : {});
    try {
      await ask(other, foreign === 'unreachable' ? 'SELECT 1' : `DO $$ BEGIN RAISE SQLSTATE '${foreign}'; END $$`);
    } finally {
      await end(other);
    }
    assert.fail('the other connection raised no error');
  }

  raise({ raise }) {
    throw new Application(raise);
  }
}

export class Application extends Error {}

/** A way to the server on which messages with this text arrive late. */
export async function slow(statement, seconds = 0.05) {
  const listener = net.createServer((near) => {
    const far = net.connect(`${host}/.s.PGSQL.${port}`);
    let before = Promise.resolve();
    near.on('data', (data) => {
      if (data.toString('latin1').includes(statement)) before = before.then(() => sleep(seconds * 1000));
      before = before.then(() => void far.write(data));
    });
    far.on('data', (data) => near.write(data));
    for (const [socket, other] of [
      [near, far],
      [far, near],
    ]) {
      socket.on('error', () => {});
      socket.on('close', () => before.then(() => other.destroy()));
    }
  });
  listener.listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const { port: at } = listener.address();
  return { options: { host: '127.0.0.1', port: at }, close: () => listener.close() };
}

/**
 * A way to the server that ends as soon as an answer to a statement with this text comes back, once. It counts the
 * trips.
 */
export async function wire(statement) {
  let armed = true;
  const way = { trips: 0, cut: () => !armed };
  let towards;
  const listener = net.createServer((near) => {
    const far = net.connect(`${host}/.s.PGSQL.${port}`);
    let seen = false;
    near.on('data', (data) => {
      seen ||= armed && data.toString('latin1').toLowerCase().includes(statement.toLowerCase());
      way.trips += towards !== far ? 1 : 0;
      towards = far;
      far.write(data);
    });
    far.on('data', (data) => {
      towards = near;
      if (seen && armed && /SELECT 1\0|COMMIT\0/.test(data.toString('latin1'))) {
        armed = false;
        near.destroy();
        far.destroy();
      } else {
        near.write(data);
      }
    });
    for (const [socket, other] of [
      [near, far],
      [far, near],
    ]) {
      socket.on('error', () => {});
      socket.on('close', () => other.destroy());
    }
  });
  listener.listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const { port: at } = listener.address();
  return Object.assign(way, { options: { host: '127.0.0.1', port: at }, close: () => listener.close() });
}
