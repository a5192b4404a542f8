// A process that completes abandoned requests, and is killed by complete.test.mjs: completer.mjs DRIVER SESSION.

import { complete } from 'idempotence';
import { ask, drivers } from './harness.mjs';

const [driver, session] = process.argv.slice(2);
const pool = drivers[driver]();

/** Effect and record in one transaction: the token keeps a late holder from committing. */
async function inTransaction(work) {
  if (driver === 'postgres') return pool.begin(work);
  const client = await pool.connect();
  try {
    await client.query('BEGIN');
    await work(client);
    await client.query('COMMIT');
  } catch (error) {
    await client.query('ROLLBACK').catch(() => {});
    throw error;
  } finally {
    client.release();
  }
}

await complete(
  pool,
  session,
  async (held) => {
    await ask(pool, 'SELECT pg_sleep(0.02)');
    await inTransaction(async (conn) => {
      await ask(conn, `INSERT INTO client_effect VALUES ('${session}/${held.key}', 1)`);
      await held.record({ point: held.point, state: held.state }, { conn });
    });
  },
  { lease: 0.5, interval: 0.05, grace: 0, concurrency: 3, onError() {} },
);
