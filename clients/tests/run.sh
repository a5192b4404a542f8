#!/usr/bin/env bash
# run.sh PG_CONFIG: tests the clients for Java and Go against a private server: both files of vectors, the cases of
# test_cases.py, the round trips, PgBouncer, the chaos test, and a server that does not preload the library. javac and
# go compile the clients with the drivers that Debian packages. IDEM_LONG=1 runs the chaos test with 5000 keys instead
# of 200. IDEM_MANAGED is the path of the edition for managed services, which then replaces the extension. The script
# prints a line for each test and fails if one fails.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=scripts/common.sh
. "$here/../../scripts/common.sh"
# shellcheck source=scripts/server.sh
. "$root/scripts/server.sh"
pg_config=${1:?usage: run.sh PG_CONFIG}
trap server_remove EXIT
made=$root/target/clients/agents
command -v javac >/dev/null || "$root/scripts/packages.sh" openjdk-17-jdk-headless
debian=$("$root/scripts/unpacked.sh" "${agent_packages[@]}")/usr
jars=$made
for jar in postgresql HikariCP slf4j-api slf4j-nop; do
    jars+=:$debian/share/java/$jar.jar
done

python=$("$root/scripts/venv.sh")

rm -rf "$made/go/src"
mkdir -p "$made/go/src/idempotence"
quietly javac -Xlint:all,-serial -Werror -d "$made" -cp "$jars" \
    "$root"/clients/java/*.java "$root"/clients/java/tests/*.java
cp "$root"/clients/go/*.go "$made/go/src/idempotence/"
# A package that is installed on this machine was not unpacked.
if [ -e "$debian/lib/go/bin/go" ]; then
    GOROOT=$(readlink -f "$debian/lib/go")
    export GOROOT PATH=$GOROOT/bin:$PATH
fi
export GO111MODULE=off GOFLAGS='' GOPATH=$made/go:$debian/share/gocode:/usr/share/gocode GOCACHE=$made/go/cache
quietly go vet idempotence
quietly go vet "$root"/clients/go/tests/*.go
quietly go build -o "$made/agent" "$root"/clients/go/tests/*.go
formatted=$(gofmt -l "$root/clients/go")
[ -z "$formatted" ] || die "gofmt would change $formatted"

# JDBC has no Unix sockets.
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
settings=("shared_preload_libraries = 'idempotence'")
[ -z "${IDEM_MANAGED:-}" ] || settings=()
server_start "$pg_config" 'fsync = off' "${settings[@]}" \
    "listen_addresses = '127.0.0.1'" "port = $port"
export PGPORT=$port
"$server_bin/createdb" clients
IDEM_URI="postgresql:///clients?host=$PGHOST&port=$PGPORT&user=postgres"
export AGENT_JAVA=$jars AGENT_GO=$made/agent IDEM_URI PYTHONPATH=$root/clients/python/tests PYTHONDONTWRITEBYTECODE=1

status=0
for tests in test_agents test_cases test_round_trips test_pooler test_readme; do
    timeout 500 "$python" -m pytest -p no:cacheprovider -p conftest -q --tb=short "$here/$tests.py" || status=1
done
keys=200 kills=20
[ -z "${IDEM_LONG:-}" ] || keys=5000 kills=500
# The chaos test starts Java often, so it uses the compiler that starts quickly.
for agent in "java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp $jars Agent" "$made/agent"; do
    # shellcheck disable=SC2086 # several words
    timeout 1200 "$python" "$root/clients/chaos/chaos.py" --data "$server_dir/data" --bin "$server_bin" \
        --uri "$IDEM_URI" --keys $keys --kills $kills -- $agent chaos '{port}' '{tcp}' || status=1
done

if [ -z "${IDEM_MANAGED:-}" ]; then
    server_remove
    server_start "$pg_config" 'fsync = off' "listen_addresses = '127.0.0.1'" "port = $port"
    export PGPORT=$port
    "$server_bin/createdb" clients
    IDEM_URI="postgresql:///clients?host=$PGHOST&port=$PGPORT&user=postgres" \
        timeout 100 "$python" -m pytest -p no:cacheprovider -p conftest -q --tb=short "$here/test_check.py" || status=1
fi
exit $status
