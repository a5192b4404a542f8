#!/usr/bin/env bash
# clients_rates.sh [--server PG_CONFIG] [OPTION...]: measures latency, throughput and round trips of the adapters for web
# frameworks over HTTP, beside the same route unprotected and beside rivals, with the database 0.5 ms away: bench/clients.
# Writes docs/benchmarks/clients.md, and the table in docs/benchmarks.md. It takes about half an hour and what it builds
# first; `clients_rates.sh --help` lists the options.
#
# --server names an installation with the extension in it, so that none is built; otherwise it is PG_CONFIG's (default:
# Debian's PostgreSQL 15). wrk, Redis, node, the JDK, Go and the drivers of these two are Debian's, or what is installed.
# The Python packages have the versions of bench/clients/requirements.txt, those of node and Rust the versions of the
# clients' lock files. All goes below target/.
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
command -v javac >/dev/null || scripts/packages.sh openjdk-17-jdk-headless
debian=$(scripts/unpacked.sh "${agent_packages[@]}")/usr

wanted=$root/bench/clients/requirements.txt
made=$root/target/clients/rates
venv=$made/venv
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
    cp "$root/bench/clients/served.mjs" tests/
)
node=$root/target/clients/node/clients/node
rust=$root/target/clients/rust
CARGO_TARGET_DIR=$rust quietly cargo build --quiet --release --locked --manifest-path clients/rust/Cargo.toml \
    --all-features --example measured
java=$made/java
for jar in postgresql HikariCP slf4j-api slf4j-nop; do
    java+=:$debian/share/java/$jar.jar
done
quietly javac -d "$made/java" -cp "$java" clients/java/*.java bench/clients/Served.java
if [ -e "$debian/lib/go/bin/go" ]; then
    GOROOT=$(readlink -f "$debian/lib/go")
    export GOROOT PATH=$GOROOT/bin:$PATH
fi
export GO111MODULE=off GOFLAGS='' GOPATH=$made/go:$debian/share/gocode:/usr/share/gocode GOCACHE=$made/go/cache
rm -rf "$made/go/src"
mkdir -p "$made/go/src/idempotence"
cp clients/go/*.go "$made/go/src/idempotence/"
quietly go build -o "$made/served" bench/clients/served.go

# What is in the lock file of npm, and of cargo.
npm_version() { node -p "'$1 ' + require('$node/node_modules/$1/package.json').version"; }
crate_version() { sed -nE "/^name = \"$1\"/{n;s/version = \"(.*)\"/$1 \1/p}" clients/rust/Cargo.lock; }
mapfile -t versions < <(
    redis-server --version | sed -E 's/.*v=([^ ]*).*/Redis \1/'
    echo "node $(node --version | tr -d v)"
    for package in express fastify pg postgres; do npm_version "$package"; done
    rustc --version | cut -d ' ' -f 1-2
    for crate in axum deadpool-postgres tokio-postgres sqlx; do crate_version "$crate"; done
    go version | sed -E 's/.* go([0-9.]+) .*/Go \1/'
    java --version | sed -nE '1s/^[^ ]+ ([^ ]+).*/Java \1/p'
    wrk -v 2>&1 | sed -nE 's/^(wrk [^ ]*).*/\1/p' || true
)

redis_dir='' redis_pid=''
remove() {
    # It would not end otherwise where it cannot save what it has.
    [ -z "$redis_pid" ] || { kill -KILL "$redis_pid" && wait "$redis_pid"; } 2>/dev/null || true
    [ -z "$redis_dir" ] || rm -rf "$redis_dir"
    server_remove
}
trap remove EXIT
# Without flushes: the time of one would be added to each request, protected or not, and make the ratios look better.
server_start "$pg_config" "shared_preload_libraries = 'idempotence'" 'shared_buffers = 512MB' 'min_wal_size = 2GB' \
    'max_wal_size = 16GB' 'checkpoint_timeout = 1h' 'max_connections = 300' 'fsync = off'
redis_dir=$(mktemp -d)
redis-server --port 0 --daemonize no --dir "$redis_dir" --loglevel warning --unixsocket "$redis_dir/socket" >/dev/null &
redis_pid=$!

export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$root/clients/python/src:$root/clients/chaos
programs=$(printf '{"node": "%s", "rust": "%s", "go": "%s", "java": "%s"}' \
    "$node/tests/served.mjs" "$rust/release/examples/measured" "$made/served" "$java")
"$venv/bin/python" bench/clients/rates.py --page docs/benchmarks/clients.md --summary docs/benchmarks.md \
    --results target/clients/rates.json --uri "postgresql:///postgres?host=$PGHOST&port=5432&user=postgres" \
    --server "$PGHOST/.s.PGSQL.5432" --redis-socket "$redis_dir/socket" --programs "$programs" \
    --versions "${versions[@]}" "$@"
