// The edition in PGlite, PostgreSQL in one process of node: each function once. MODULE is the path of @electric-sql/pglite.
import assert from 'node:assert';
import fs from 'node:fs';
import path from 'node:path';

const { PGlite } = await import(path.join(process.env.MODULE, 'dist', 'index.js'));
const db = await PGlite.create();
const file = process.argv[2];
for (let time = 0; time < 2; time += 1) await db.exec(fs.readFileSync(file, 'utf8'));
await db.exec('SET search_path = public, idempotence');
const ask = async (sql) => (await db.query(sql)).rows[0];
const refused = async (sql) => db.query(sql).then(() => null, (error) => error.code);

await ask("SELECT idem_create_session('p', ttl => '1 hour')");
await db.transaction(async (tx) => {
  assert.equal((await tx.query("SELECT status FROM idem_begin('p', 'k', payload => '{\"a\": 1}')")).rows[0].status, 'started');
  await tx.query("SELECT idem_record('p', 'k', '{\"done\": true}')");
});
const replay = await ask("SELECT status, replayed, response FROM idem_begin('p', 'k', payload => '{\"a\": 1.0}')");
assert.deepEqual(replay, { status: 'succeeded', replayed: true, response: { done: true } });
assert.equal(await refused("SELECT idem_begin('p', 'k', payload => '{\"a\": 2}')"), 'ID001');
assert.equal(await refused("SELECT idem_begin('p', 'open')"), 'ID008');
assert.equal((await ask("SELECT status FROM idem_lookup('p', 'open')")).status, 'unknown');
const { token } = await ask("SELECT token FROM idem_begin('p', 'leased', lease => '10 ms')");
await ask('SELECT pg_sleep(0.02)');
assert.equal((await ask("SELECT status FROM idem_begin('p', 'leased', lease => '1 min')")).status, 'taken_over');
assert.equal(await refused(`SELECT idem_record('p', 'leased', token => ${token})`), 'ID005');
assert.equal((await ask("SELECT status FROM idem_settle('p', 'lost')")).status, 'cancelled');
assert.equal((await ask("SELECT response FROM idem_run('p', 'run', 'SELECT 42')")).response, 42);
await ask("SELECT idem_create_session('inbox', inbox => true)");
assert.deepEqual(await ask("SELECT idem_once('inbox', 1) AS first, idem_once('inbox', 1) AS second"), { first: true, second: false });
await db.exec('CALL idem_sweep()');
assert.equal((await ask("SELECT status FROM idempotence.health WHERE name = 'sweep'")).status, 'ok');
console.log('ok - PGlite: each function');
