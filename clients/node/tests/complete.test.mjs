// The completer: every abandoned request is completed once, however often completers are killed.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { after, before, describe, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { complete, Final, lookup, run } from 'idempotence';
import { idempotency, recordable } from 'idempotence/express';
import { expressApp, expresses, fresh, request as send, stage } from './application.mjs';
import { ask, drivers, end, prepare, vectors } from './harness.mjs';

const KILLS = process.env.IDEM_LONG ? 200 : 15;
before(() => prepare(vectors('http_vectors.json')));
after(() => stage.close());

async function until(what, look) {
  for (let n = 0; n < 1500; n++) {
    if (await look()) return;
    await sleep(20);
  }
  assert.fail(`never came: ${what}`);
}

for (const [driver, open] of Object.entries(drivers)) {
  describe(driver, () => {
    let pool;
    let session;
    before(() => (pool = open()));
    after(() => end(pool));
    const abandon = (key, seconds = 0.01) =>
      stage.sql(`SELECT token FROM idem_begin('${session}', '${key}', payload => '{"a": 1}', lease => '${seconds} s')`);
    const opened = async (options = '') => {
      session = `completer-${fresh()}`;
      await stage.sql(`SELECT idem_create_session('${session}'${options})`);
    };
    const completing = async (handler, options, use) => {
      const stop = new AbortController();
      const done = complete(pool, session, handler, {
        interval: 0.05,
        grace: 0,
        signal: stop.signal,
        onError() {},
        ...options,
      });
      try {
        await use();
      } finally {
        stop.abort();
        await done;
      }
    };
    const outcome = async (key) => {
      const { status, response } = await lookup(pool, session, key);
      return [status, response];
    };

    test('takes over what has expired or stopped at a checkpoint, with its state, and nothing else', async () => {
      await opened();
      await abandon('expired');
      await abandon('at work', 60);
      await stage.sql(`BEGIN; SELECT idem_begin('${session}', 'suspended');
        SELECT idem_checkpoint('${session}', 'suspended', 'charged', '{"charge": 7}'); COMMIT`);
      const seen = [];
      await completing(
        async (held) => {
          seen.push([held.key, held.takenOver, held.point, held.state]);
          if (held.key === 'suspended') throw new Final({ error: 'declined' });
          return { done: held.key };
        },
        {},
        () =>
          until(
            'both',
            async () => (await outcome('expired'))[0] === 'succeeded' && (await outcome('suspended'))[0] === 'failed',
          ),
      );
      assert.deepEqual(seen.sort(), [
        ['expired', true, null, null],
        ['suspended', false, 'charged', { charge: 7 }],
      ]);
      assert.deepEqual(
        [await outcome('expired'), await outcome('suspended')],
        [
          ['succeeded', { done: 'expired' }],
          ['failed', { error: 'declined' }],
        ],
      );
      assert.equal((await outcome('at work'))[0], 'in_progress');
    });

    test('pauses after an error, longer each time, and gives up with max_attempts of the session', async () => {
      await opened(', max_attempts => 3');
      await abandon('k');
      const times = [];
      const errors = [];
      await completing(
        () => {
          times.push(performance.now());
          throw new Error('the service is down');
        },
        { lease: 0.05, grace: 0.15, onError: (error, key) => errors.push([error.message, key]) },
        () => until('given up', async () => (await outcome('k'))[0] === 'failed'),
      );
      assert.deepEqual(errors, [
        ['the service is down', 'k'],
        ['the service is down', 'k'],
      ]);
      // The second attempt was the first one here; after it, the pause is twice as long.
      assert.ok(times[1] - times[0] >= 290, `${times}`);
      assert.deepEqual(await outcome('k'), ['failed', { attempts: 3 }]);
    });

    test('leaves a request to its client for a while', async () => {
      await opened();
      await abandon('k');
      let calls = 0;
      await completing(
        () => ++calls,
        { grace: 60 },
        () => sleep(300),
      );
      assert.equal(calls, 0);
    });

    test('leaves alone what was attempted too often', async () => {
      await opened();
      await abandon('k');
      await sleep(30);
      await abandon('k');
      await sleep(30);
      let calls = 0;
      await completing(
        () => ++calls,
        { maxAttempts: 2 },
        () => sleep(300),
      );
      assert.equal(calls, 0);
    });

    test('when it is stopped, it waits for the handlers that are running', async () => {
      await opened();
      await abandon('k');
      let begun;
      const running = new Promise((resolve) => (begun = resolve));
      await completing(
        async () => {
          begun();
          await sleep(300);
          return 1;
        },
        {},
        () => running,
      );
      assert.deepEqual(await outcome('k'), ['succeeded', 1]);
    });

    test('what a completer records for a route is replayed by the route', async () => {
      await opened();
      const key = fresh();
      const server = await expressApp(
        expresses['express 5'],
        idempotency(pool, session, { lease: 0.2 })(async () => {
          throw new Error('the service is down');
        }),
      );
      assert.equal((await send(server, key)).status, 500);
      await completing(
        () => recordable({ status: 201, body: { charged: 1 } }),
        {},
        () => until('completed', async () => (await outcome(`:${key}`))[0] === 'succeeded'),
      );
      const answer = await send(server, key);
      assert.deepEqual([answer.status, answer.text, answer.replayed], [201, '{"charged":1}', true]);
      server.closeAllConnections();
      server.close();
    });

    test(`${KILLS} kills: each abandoned request is completed exactly once`, async () => {
      await opened();
      const keys = Array.from({ length: 4 * KILLS }, (_, n) => `k${n}`);
      for (const key of keys) await abandon(key);
      const program = fileURLToPath(new URL('completer.mjs', import.meta.url));
      const children = new Set();
      const start = () => {
        const child = spawn(process.execPath, [program, driver, session], { stdio: 'ignore' });
        children.add(child);
        child.once('exit', () => children.delete(child));
        return child;
      };
      const [steady] = [start()];
      for (let n = 0; n < KILLS; n++) {
        const child = start();
        await sleep(250 + Math.random() * 250);
        child.kill('SIGKILL');
        await once(child, 'exit');
      }
      await until(
        'all',
        async () =>
          (
            await stage.sql(`SELECT count(*) = ${keys.length} FROM idempotence.outcomes WHERE session = '${session}'`)
          )[0][0],
      );
      steady.kill('SIGKILL');
      const counts = await stage.sql(
        `SELECT count(*)::int, count(DISTINCT run)::int FROM client_effect WHERE run LIKE '${session}/%'`,
      );
      assert.deepEqual(counts, [[keys.length, keys.length]]);
    });
  });
}

test('a lease refuses calls after its work has ended', async () => {
  const pool = drivers.pg();
  const { lease } = await import('idempotence');
  const key = fresh();
  let kept;
  await lease(pool, 'http-clients', key, null, async (held) => {
    kept = held;
    void held.record(1); // without await: the end of the work waits for it
  });
  await assert.rejects(kept.checkpoint('late'), /the lease has ended/);
  assert.equal((await run(pool, 'http-clients', key, null, () => 0)).response, 1);
  await ask(pool, 'SELECT 1');
  await end(pool);
});
