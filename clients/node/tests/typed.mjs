// Runs the programs of README.md as its reader does: typed.mjs FOLDER, with PGHOST and the like of a superuser. The
// package is installed from a checkout that was never built, in a new folder; its programs are sent requests, and
// killed in the middle.

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import net from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';

const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
const { PGHOST: host, PGPORT: port = '5432', PGUSER: user = 'postgres' } = process.env;
const shop = `postgresql:///shop?host=${host}&port=${port}&user=app`;
const work = mkdtempSync(path.join(tmpdir(), 'typed-'));

function blocks(title, kind) {
  const section = readme.split(/^##+ /m).find((part) => part.startsWith(title));
  return [...section.matchAll(new RegExp(`\`\`\`${kind}\\n(.*?)\`\`\``, 'gs'))].map(([, block]) => block);
}

async function superuser(database, ...statements) {
  const client = new pg.Client({ host, port: Number(port), user, database });
  await client.connect();
  try {
    let rows;
    for (const statement of statements) ({ rows } = await client.query({ text: statement, rowMode: 'array' }));
    return rows;
  } finally {
    await client.end();
  }
}

const balances = async () => (await superuser('shop', 'SELECT balance::int FROM account ORDER BY id')).flat();

async function freshDatabase() {
  await superuser(
    'postgres',
    'DROP DATABASE IF EXISTS shop WITH (FORCE)',
    'DROP ROLE IF EXISTS app',
    'CREATE DATABASE shop',
  );
  const [createdb, , ...lines] = blocks('Installation', 'sh')[1].trim().split('\n');
  assert.equal(createdb, 'createdb shop');
  await superuser('shop', lines.slice(0, -1).join('\n'));
}

async function freePort() {
  const listener = net.createServer().listen(0, '127.0.0.1');
  await once(listener, 'listening');
  const { port: free } = listener.address();
  listener.close();
  return free;
}

async function reached(at, server) {
  for (let n = 0; n < 600; n++) {
    assert.equal(server.exitCode, null, 'the program has ended');
    const socket = net.connect(at, 'localhost');
    const found = await new Promise((tell) =>
      socket.once('connect', () => tell(true)).once('error', () => tell(false)),
    );
    socket.destroy();
    if (found) return;
    await sleep(50);
  }
  throw new Error('the program never listened');
}

async function served(folder, at, use) {
  const server = spawn(process.execPath, ['shop.mjs'], {
    cwd: folder,
    env: { ...process.env, DATABASE_URL: shop },
    stdio: 'inherit',
  });
  try {
    await reached(at, server);
    return await use(server);
  } finally {
    server.kill('SIGKILL');
    if (server.exitCode === null && server.signalCode === null) await once(server, 'exit');
  }
}

async function curl(at, key = 'order-1') {
  const command = blocks('Express', 'sh')[2];
  const bash = spawn('bash', ['-c', command.replace('localhost:8000', `localhost:${at}`).replace('order-1', key)], {
    stdio: ['ignore', 'pipe', 'ignore'],
  });
  let said = '';
  for await (const chunk of bash.stdout) said += chunk;
  return said;
}

const status = (said) => said.split(' ')[1];

/** Executes an installation of README.md, with the checkout where it is expected. */
function install(folder, command) {
  execFileSync('bash', ['-c', `${command} --prefer-offline --no-audit --no-fund --loglevel=error`], {
    cwd: folder,
    stdio: ['ignore', 'ignore', 'inherit'],
  });
}

/** Four lines, two requests, a kill. */
async function played(framework, sentence) {
  const began = performance.now();
  const folder = path.join(work, framework);
  await freshDatabase();
  mkdirSync(folder);
  writeFileSync(path.join(folder, 'package.json'), '{}');
  install(folder, blocks('Installation', 'sh')[0].trim());
  install(folder, blocks(framework, 'sh')[0].split('\n')[0]);
  const at = await freePort();
  const source = blocks(framework, 'js')[0].replace('8000', String(at));
  const program = path.join(folder, 'shop.mjs');
  writeFileSync(program, source);

  const [first, second] = await served(folder, at, async () => [await curl(at), await curl(at)]);
  assert.deepEqual([status(first), status(second)], ['201', '201'], first);
  assert.ok(!/idempotent-replayed/i.test(first) && /idempotent-replayed: true/i.test(second), second);
  assert.equal(first.split('\r\n\r\n')[1], second.split('\r\n\r\n')[1]);
  assert.deepEqual(await balances(), [70, 30]);

  const place = source.lastIndexOf(sentence);
  assert.ok(place > 0);
  writeFileSync(
    program,
    `${source.slice(0, place)}await new Promise((wake) => setTimeout(wake, 60000));\n  ${source.slice(place)}`,
  );
  await served(folder, at, async () => {
    void curl(at, 'order-2');
    const sleeping =
      "SELECT count(*)::int FROM pg_stat_activity WHERE usename = 'app' AND state = 'idle in transaction'";
    for (let n = 0; (await superuser('shop', sleeping))[0][0] === 0; n++) {
      assert.ok(n < 400, 'the request never slept');
      await sleep(50);
    }
  });
  assert.deepEqual(await balances(), [70, 30]);

  writeFileSync(program, source);
  let third;
  await served(folder, at, async () => {
    // The server notices within a moment that the client is dead.
    for (let n = 0; n < 50 && status((third = await curl(at, 'order-2'))) === '409'; n++) await sleep(100);
  });
  assert.equal(status(third), '201', third);
  assert.deepEqual(await balances(), [40, 60]);
  const lines = source.match(/\/\/ \d$/gm).length;
  assert.ok(lines <= 4);
  console.log(
    `ok ${framework}: ${lines} lines, two requests, a kill, one payment each: ` +
      `${((performance.now() - began) / 1000).toFixed(0)} s`,
  );
}

/** The pieces that are no whole programs, with what they take for granted. */
async function pieces() {
  await freshDatabase();
  await superuser(
    'shop',
    "SELECT idem_create_session('mail', inbox => true, owner => 'app')",
    'CREATE TABLE delivery (message text)',
    'GRANT INSERT ON delivery TO app',
  );
  const folder = path.join(work, 'Express');
  const around = `import pg from 'pg';
    const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
    pool.on('error', console.error);
    const [payload, order, messages, conn] = [{ amount: 30 }, {}, [{ id: 'a' }, { id: 'a' }], pool];
    const app = { post() {}, use() {} };
    const processor = { charge: async () => ({ id: 'ch_1' }) };`;
  const piece = (title, key, more, before = '') => {
    writeFileSync(
      path.join(folder, 'piece.mjs'),
      `${blocks(title, 'js')[0]}\n${around}\nconst key = '${key}';${before}\n${more}\nawait pool.end();`.replace(
        /^(import .*)$([^]*?)(\nimport pg[^]*?const key = .*$)/m,
        '$1$3$2',
      ),
    );
    return execFileSync(process.execPath, ['piece.mjs'], {
      cwd: folder,
      env: { ...process.env, DATABASE_URL: shop },
      encoding: 'utf8',
    });
  };
  const told = 'console.log(answer.response, answer.replayed, answer.failed);';
  assert.equal(piece('Without a framework', 'k', told), '{ moved: 30 } false false\n');
  assert.equal(piece('Without a framework', 'k', told), '{ moved: 30 } true false\n');
  assert.deepEqual(await balances(), [70, 0]);
  piece('Effects outside of the database', 'l', '');
  assert.deepEqual(await superuser('shop', "SELECT status, response FROM idem_lookup('payments', 'l')"), [
    ['succeeded', { charge: 'ch_1' }],
  ]);
  assert.equal(piece('Inboxes', 'm', 'console.log(fresh); await client.close();'), "[ 'a' ]\n");
  assert.deepEqual(await superuser('shop', 'SELECT message FROM delivery'), [['hello']]);
  writeFileSync(path.join(folder, 'alone.mjs'), blocks('Tests of a handler', 'js')[0]);
  execFileSync(process.execPath, ['alone.mjs'], { cwd: folder });
  piece('Handlers that write', 'o', '');
  const abandoned = "SELECT idem_begin('payments', 'abandoned', lease => '10 ms')";
  // It is completed after the grace of 5 seconds.
  await superuser('shop', abandoned);
  const done = "SELECT status, response FROM idem_lookup('payments', 'abandoned')";
  const completer = piece(
    'Abandoned requests',
    'p',
    '',
    `setTimeout(() => process.kill(process.pid, 'SIGTERM'), 9000);`,
  );
  assert.equal(completer, '');
  assert.deepEqual(await superuser('shop', done), [['succeeded', { charge: 'ch_1' }]]);
  console.log('ok without a framework');
}

/** The migration, in a database of its own. */
async function migration() {
  await superuser(
    'postgres',
    'DROP DATABASE IF EXISTS shop WITH (FORCE)',
    'DROP ROLE IF EXISTS app',
    'CREATE DATABASE shop',
    'CREATE ROLE app LOGIN',
  );
  const folder = path.join(work, 'migration');
  mkdirSync(path.join(folder, 'migrations'), { recursive: true });
  writeFileSync(path.join(folder, 'package.json'), '{}');
  install(folder, 'npm install node-pg-migrate pg');
  writeFileSync(path.join(folder, 'migrations', '1_idempotence.mjs'), blocks('Migrations', 'js')[0]);
  const migrate = (direction) =>
    execFileSync('npx', ['node-pg-migrate', direction], {
      cwd: folder,
      env: { ...process.env, DATABASE_URL: shop.replace('user=app', `user=${user}`) },
      stdio: ['ignore', 'ignore', 'inherit'],
    });
  const sessions = () => superuser('shop', 'SELECT session, owner::text FROM idempotence.sessions');
  migrate('up');
  assert.deepEqual(await sessions(), [['payments', 'app']]);
  migrate('down');
  assert.deepEqual(await sessions(), []);
  console.log('ok migration');
}

const checkout = path.join(work, 'idempotence', 'clients', 'node');
cpSync(path.resolve(process.argv[2]), checkout, {
  recursive: true,
  filter: (file) => !/\/(node_modules|dist)$/.test(file),
});
assert.ok(!existsSync(path.join(checkout, 'dist')));
try {
  await played('Express', 'return { status: 201');
  await played('Fastify', 'reply.code(201)');
  await pieces();
  await migration();
} finally {
  await superuser('postgres', 'DROP DATABASE IF EXISTS shop WITH (FORCE)', 'DROP ROLE IF EXISTS app');
  rmSync(work, { recursive: true });
}
