// Every case of vectors.json, with every driver.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { check, Client, Final, InProgress, Interrupted, lease, lookup, once, run, Unrecorded } from 'idempotence';
import { Application, ask, cases, drivers, end, idle, prepare, Stage, vectors, wire, Work } from './harness.mjs';

const file = vectors('vectors.json');
const edition = process.env.IDEM_MANAGED ? 'managed' : 'extension';

const keyOf = (key) => (key?.uuid === undefined ? key : key.uuid.toLowerCase());

function word(error) {
  if (error instanceof InProgress) return 'in_progress';
  if (error instanceof Interrupted) return 'interrupted';
  if (error instanceof Unrecorded) return 'unrecorded';
  if (error instanceof Application) return 'application';
  if (/^(ECONN|ENOENT|CONNECT)/.test(error?.code)) return 'connection';
  return error?.code ?? String(error);
}

/** The calls of one case. */
class Calls {
  constructor(stage, pools, driver) {
    Object.assign(this, { stage, pools, driver });
  }

  pool({ pool = 'own' }) {
    return this.pools[pool];
  }

  args(step) {
    const { session = this.stage.run, key, payload = null } = step;
    return [this.pool(step), session, keyOf(key), payload];
  }

  options(step, ...names) {
    return Object.fromEntries(names.filter((name) => step[name] !== undefined).map((name) => [name, step[name]]));
  }

  work(step) {
    return (this.made = new Work(this.stage, step.work, {
      final({ final }) {
        throw new Final(final);
      },
    }));
  }

  async run(step) {
    const work = this.work(step);
    return run(...this.args(step), (conn) => work.do(conn), this.options(step, 'wait', 'deadline', 'ttl', 'claim'));
  }

  async lookup(step) {
    const [pool, session, key] = this.args(step);
    return lookup(pool, session, key, this.options(step, 'wait'));
  }

  async lease(step) {
    const { stage } = this;
    const cuts = step.do.some(({ terminate, record }) => terminate && record !== undefined);
    const way = cuts ? await wire('idem_record') : undefined;
    const pool = way ? drivers[this.driver](way.options) : this.pool(step);
    let held;
    const work = (this.made = new Work(stage, [step.do], {
      sql: (action, conn) => work.sql({ ...action, sql: action.sql.replaceAll('{token}', held.token) }, conn),
      effect: ({ effect }) => ask(pool, `INSERT INTO client_effect VALUES ('${stage.run}', ${effect})`).then(() => {}),
      record: ({ record, failed }) => held.record(record, { failed: failed ?? false }),
      checkpoint: ({ checkpoint, state }) => held.checkpoint(checkpoint === true ? 'half' : checkpoint, state),
      release: () => held.release(),
      extend: () => held.extend(),
      async until_lost({ until_lost }) {
        for (let n = 0; !held.signal.aborted && n < until_lost * 50; n++) await sleep(20);
        assert.equal(held.signal.reason.code, 'ID005');
      },
    }));
    const [, session, key, payload] = this.args(step);
    try {
      const answer = await lease(
        pool,
        session,
        key,
        payload,
        (lent) => {
          held = lent;
          return work.do(pool);
        },
        this.options(step, 'lease', 'wait', 'deadline'),
      );
      if (way) assert.ok(way.cut(), 'the wire was not cut');
      return held ? { ...held, status: held.takenOver ? 'taken_over' : 'started' } : answer;
    } finally {
      if (way) {
        await end(pool);
        way.close();
      }
    }
  }

  async once(step) {
    const keys = step.keys.map(keyOf);
    let found;
    const inTransaction = async (conn) => {
      found = await once(conn, this.stage.run, keys);
      if (step.rollback) throw new Application('rollback');
    };
    const pool = this.pool(step);
    try {
      if (this.driver === 'postgres') {
        await pool.begin(inTransaction);
      } else {
        const client = await pool.connect();
        try {
          await client.query('BEGIN');
          await inTransaction(client);
          await client.query('COMMIT');
        } catch (error) {
          await client.query('ROLLBACK');
          throw error;
        } finally {
          client.release();
        }
      }
    } catch (error) {
      if (!(error instanceof Application)) throw error;
    }
    return { new: found.map(String) };
  }

  async check(step) {
    const session = step.session === undefined ? this.stage.run : step.session;
    const found = await check(this.pool(step), session);
    const says = step.expect.says?.filter((text) => found.some((sentence) => sentence.includes(text)));
    return {
      problems: found.map((sentence) => sentence.split(':')[0]),
      says,
      edition: found.edition?.split(' ')[0] === edition,
    };
  }

  async client({ name, window }) {
    this.registered = new Client(this.pools.own, name, { window });
    await this.registered.register();
  }

  async send(step) {
    const work = this.work(step);
    return this.registered.send(step.payload, (conn) => work.do(conn), this.options(step, 'deadline'));
  }

  async close() {
    await this.registered.close();
  }
}

function compare(expected, found, error, works) {
  const { error: wanted, works: count, expires, token, taken_over: takenOver, ...rest } = expected;
  if (wanted === undefined && error) throw error;
  if (wanted !== undefined) assert.equal(error ? word(error) : JSON.stringify(found), wanted);
  if (count !== undefined) assert.equal(works, count, 'calls of the work');
  if (expires !== undefined) assert.equal(error.expiresAt !== null, expires);
  if (token !== undefined) assert.equal(Number.isSafeInteger(found.token), token);
  if (takenOver !== undefined) assert.equal(found.takenOver, takenOver);
  for (const [name, value] of Object.entries(rest)) assert.deepEqual((error ?? found)[name], value, name);
}

for (const [driver, open] of Object.entries(drivers)) {
  if (process.env.IDEM_ONE && driver !== 'pg') continue;
  describe(driver, () => {
    const pools = {};
    before(async () => {
      await prepare(file);
      pools.own = open();
      pools.stranger = open({ user: 'client_stranger' });
      pools.ungranted = open({ user: 'client_nobody' });
      // The edition for managed services has a schema of its own.
      pools.hidden = open({ user: 'client_nobody', ...(edition === 'managed' ? {} : { database: 'client_hidden' }) });
      pools.empty = open({ database: 'client_empty' });
      pools.unreachable = open({ host: '127.0.0.1', port: 1 });
    });
    after(() => Promise.all(Object.values(pools).map(end)));

    for (const one of cases(file, edition === 'managed' ? [] : ['client sessions'])) {
      test(one.name, async () => {
        const stage = new Stage(one.run);
        try {
          for (const text of one.setup ?? []) await stage.sql(text);
          const calls = new Calls(stage, pools, driver);
          for (const step of one.steps) {
            if (await stage.step(step)) continue;
            let found;
            let error;
            calls.made = undefined;
            try {
              found = await calls[step.call](step);
            } catch (came) {
              error = came;
            }
            compare(step.expect ?? {}, found, error, calls.made?.calls ?? 0);
          }
          await stage.end(one.effects);
        } finally {
          await stage.close();
        }
        // Whatever happened, each connection is back, and nobody listens to one any more.
        if (driver === 'pg') await idle(pools.own);
      });
    }
  });
}
