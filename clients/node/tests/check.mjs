// check() on a server that does not preload the library, for a role that was granted nothing and for one that was.
// Not among the other tests, whose server preloads it: see run.sh.

import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { check } from 'idempotence';
import { fresh, stage } from './application.mjs';
import { drivers, end, prepare, vectors } from './harness.mjs';

const session = fresh();
before(async () => {
  await prepare(vectors('vectors.json'));
  await stage.sql(`SELECT idem_create_session('${session}')`);
});
after(() => stage.close());

for (const [driver, open] of Object.entries(drivers)) {
  describe(driver, () => {
    const checked = async (user) => {
      const pool = open({ user });
      return check(pool, session).finally(() => end(pool));
    };

    test('a role that was granted nothing', async () => {
      const [problem, ...others] = await checked('client_nobody');
      assert.match(problem, /^rights: .*SELECT idem_grant\('client_nobody'\) as postgres$/);
      assert.deepEqual(others, []);
    });

    test('a server that does not preload the library', async () => {
      const [problem, ...others] = await checked('client_owner');
      assert.match(problem, /^preload: .*add idempotence to shared_preload_libraries and restart/);
      assert.deepEqual(others, []);
    });
  });
}
