// Builds dist when npm installs this folder: `npm install ../clients/node` links it, and installs none of its
// development packages.

import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const folder = fileURLToPath(new URL('..', import.meta.url));
const run = (...command) => execFileSync('npm', command, { cwd: folder, stdio: 'inherit' });
if (!existsSync(`${folder}/node_modules/typescript`))
  run('ci', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error');
run('run', '--silent', 'build');
