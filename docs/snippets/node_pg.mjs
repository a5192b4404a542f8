// Transfers money once, however often it is asked to. node pg; usage: node node_pg.mjs URI [KEY]
//
// setup.sql makes what it needs.

import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';

const [uri, givenKey] = process.argv.slice(2);

// Asks until there is an answer, with the same key and payload each time.
async function transfer(key, payload, attemptsMax = 10) {
  let error;
  for (let attempt = 0; attempt < attemptsMax; attempt++) {
    const client = new pg.Client(uri);
    client.on('error', () => {}); // else a connection lost while idle ends the process
    try {
      await client.connect();
      await client.query('BEGIN');
      const ticket = await execute(client, key, payload);
      await client.query('COMMIT');
      if (ticket.status !== 'in_progress') return ticket;
      error = Object.assign(new Error('another attempt is still at work'), { code: '55P03' });
    } catch (e) {
      if (!isRetryable(e)) throw e;
      error = e;
    } finally {
      await client.end().catch(() => {}); // rolls back what is not committed
    }
    await sleep((0.5 + Math.random() / 2) * Math.min(50 * 2 ** attempt, 2000));
  }
  throw error;
}

// Connection lost or none to be had, serialization failure, deadlock, a wait that ran out, no room. The error of
// a connection that was lost while no query ran has no code. Anything else is an answer, or a mistake: ID012 the
// mistake of asking the wrong server, which knows nothing of what was done (nodes.py).
function isRetryable(e) {
  if (e instanceof pg.DatabaseError) return /^(08|25P03|40001|40P01|53|55P03|57P0[1-35])/.test(e.code);
  const lost = /^(Connection terminated|Client has encountered a connection error|timeout ex)/;
  return /^E[A-Z]+$/.test(e.code) || lost.test(e.message);
}

// One transaction: begin, work, record.
async function execute(client, key, payload) {
  const begun = await client.query(
    "SELECT status, replayed, response FROM idem_begin('payments', $1, payload => $2, wait => $3)",
    [key, JSON.stringify(payload), '5 seconds'], // an array as it is would become an SQL array
  );
  const ticket = begun.rows[0];
  if (ticket.status !== 'started') return ticket;

  const debited = await client.query(
    'UPDATE account SET balance = balance - $2 WHERE id = $1 AND balance >= $2 RETURNING balance',
    [payload.from, payload.amount],
  );
  if (debited.rowCount === 1) {
    const credited = await client.query('UPDATE account SET balance = balance + $2 WHERE id = $1', [
      payload.to,
      payload.amount,
    ]);
    // Rolls back: the key is as if it had never been used.
    if (credited.rowCount === 0) throw new Error(`there is no account ${payload.to}`);
    ticket.status = 'succeeded';
    ticket.response = { balance: debited.rows[0].balance };
  } else {
    ticket.status = 'failed';
    ticket.response = { error: 'insufficient funds' };
  }

  await client.query("SELECT idem_record('payments', $1, $2, failed => $3, ttl => $4)", [
    key,
    JSON.stringify(ticket.response),
    ticket.status === 'failed',
    '12 hours',
  ]);
  return ticket;
}

// A wrong address, login or database is told here, and not retried.
const probe = new pg.Client(uri);
await probe.connect();
await probe.end();

// Made once, before the first attempt, and kept with the order that it belongs to.
const key = givenKey ?? randomUUID();
for (const [k, amount] of [[key, '30.00'], [key, '30.00'], [`${key}-b`, '1000.00']]) {
  const ticket = await transfer(k, { from: 1, to: 2, amount });
  console.log(ticket.status, ticket.replayed ? 'replayed' : 'executed', JSON.stringify(ticket.response));
}
