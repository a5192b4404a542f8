// Transfers money once, however often it is asked to. The client for node, over pg; usage: node node_pg.mjs URI [KEY]
//
// setup.sql makes what it needs.

import { randomUUID } from 'node:crypto';
import { check, Final, run } from 'idempotence';
import pg from 'pg';

const [uri, givenKey] = process.argv.slice(2);
const pool = new pg.Pool({ connectionString: uri, connectionTimeoutMillis: 2000 });
pool.on('error', () => {}); // else a connection lost while idle ends the process

// The answer, after COMMIT. Connections that get lost, and whoever else has the request, are met with another attempt.
function transfer(key, payload) {
  const work = async (conn) => {
    const debit = 'UPDATE account SET balance = balance - $2 WHERE id = $1 AND balance >= $2 RETURNING balance';
    const { rows } = await conn.query(debit, [payload.from, payload.amount]);
    if (rows.length === 0) throw new Final({ error: 'insufficient funds' }); // recorded: the answer to each retry
    const credited = await conn.query('UPDATE account SET balance = balance + $2 WHERE id = $1', [payload.to, payload.amount]);
    // Rolls back: the key is as if it had never been used.
    if (credited.rowCount === 0) throw new Error(`there is no account ${payload.to}`);
    return { balance: rows[0].balance };
  };
  return run(pool, 'payments', key, payload, work, { wait: 5, ttl: 12 * 3600 });
}

// A wrong address, a missing session or right is told here, and not retried.
const faults = await check(pool, 'payments');
if (faults.length > 0) throw new Error(faults.join('\n'));

// Made once, before the first attempt, and kept with the order that it belongs to.
const key = givenKey ?? randomUUID();
for (const [k, amount] of [[key, '30.00'], [key, '30.00'], [`${key}-b`, '1000.00']]) {
  const answer = await transfer(k, { from: 1, to: 2, amount });
  console.log(answer.status, answer.replayed ? 'replayed' : 'executed', JSON.stringify(answer.response));
}
await pool.end();
