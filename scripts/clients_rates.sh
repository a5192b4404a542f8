#!/usr/bin/env bash
# clients_rates.sh [--server PG_CONFIG] [OPTION...]: measures the adapters for web frameworks over HTTP, beside the same route
# unprotected and beside rivals: bench/clients. Writes docs/benchmarks/clients.md. It takes a quarter of an hour and what it
# builds first; `clients_rates.sh --help` lists the options.
#
# --server names an installation with the extension in it, so that none is built; otherwise it is PG_CONFIG's (default:
# Debian's PostgreSQL 15). wrk, Redis and node are Debian's, or what is there. The Python packages have the versions of
# bench/clients/requirements.txt, those of node and Rust the versions of the clients' lock files. All goes below target/.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/server.sh
. "$(dirname "$0")/server.sh"

cd "$root"
if [ "${1:-}" = --server ]; then
    pg_config=${2:?usage: clients_rates.sh --server PG_CONFIG}
    shift 2
else
    scripts/setup.sh
    pg_config=$(scripts/installation.sh "${PG_CONFIG:-$pg15_config}")
fi

scripts/packages.sh wrk redis-server python3-venv
command -v npm >/dev/null || scripts/packages.sh nodejs npm
wanted=$root/bench/clients/requirements.txt
venv=$root/target/clients/rates
if ! cmp -s "$wanted" "$venv/requirements.txt"; then
    say "installing the Python packages of bench/clients (once)"
    rm -rf "$venv"
    quietly python3 -m venv "$venv"
    quietly "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --require-hashes --requirement "$wanted"
    cp "$wanted" "$venv/requirements.txt"
fi
say "building the applications"
(
    # shellcheck source=clients/node/tests/built.sh
    . "$root/clients/node/tests/built.sh"
    quietly npx tsc
)
node=$root/target/clients/node/clients/node
rust=$root/target/clients/rust
CARGO_TARGET_DIR=$rust quietly cargo build --quiet --release --locked --manifest-path clients/rust/Cargo.toml --all-features \
    --example served

# What is in the lock file of npm, and of cargo.
npm_version() { node -p "'$1 ' + require('$node/node_modules/$1/package.json').version"; }
crate_version() { sed -nE "/^name = \"$1\"/{n;s/version = \"(.*)\"/$1 \1/p}" clients/rust/Cargo.lock; }
mapfile -t versions < <(
    redis-server --version | sed -E 's/.*v=([^ ]*).*/Redis \1/'
    echo "node $(node --version | tr -d v)"
    for package in express fastify pg; do npm_version "$package"; done
    rustc --version | cut -d ' ' -f 1-2
    for crate in axum deadpool-postgres tokio-postgres; do crate_version "$crate"; done
    wrk -v 2>&1 | sed -nE 's/^(wrk [^ ]*).*/\1/p' || true
)

# The settings of the rest of the benchmark, and connections for all applications at once.
redis_dir='' redis_pid=''
remove() {
    # It would not end otherwise where it cannot save what it has.
    [ -z "$redis_pid" ] || { kill -KILL "$redis_pid" && wait "$redis_pid"; } 2>/dev/null || true
    [ -z "$redis_dir" ] || rm -rf "$redis_dir"
    server_remove
}
trap remove EXIT
server_start "$pg_config" "shared_preload_libraries = 'idempotence'" 'shared_buffers = 512MB' 'min_wal_size = 2GB' \
    'max_wal_size = 16GB' 'checkpoint_timeout = 1h' 'max_connections = 300'
redis_dir=$(mktemp -d)
redis-server --port 0 --daemonize no --dir "$redis_dir" --loglevel warning --unixsocket "$redis_dir/socket" >/dev/null &
redis_pid=$!

IDEM_URI="postgresql:///postgres?host=$PGHOST&port=5432&user=postgres"
export IDEM_URI PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=$root/clients/python/src:$root/clients/python/tests:$root/clients/chaos
"$venv/bin/python" bench/clients/rates.py --page docs/benchmarks/clients.md --results target/clients/rates.json \
    --uri "$IDEM_URI" --axum "$rust/release/examples/served" --node "$node/tests/chaos_app.mjs" --redis "$redis_dir/socket" \
    --versions "${versions[@]}" "$@"
