#!/usr/bin/env bash
# run.sh PG_CONFIG: the vectors with the files for Java and Go, against a private server. javac and go compile them with
# what Debian has of drivers. Then the chaos with each; IDEM_LONG=1: with 5000 keys. IDEM_MANAGED, the path of the edition for
# managed services: that in the extension's place. A line for each test; fails if one does.
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
    "$root"/clients/java/*.java "$root/clients/java/tests/Agent.java"
cp "$root"/clients/go/*.go "$made/go/src/idempotence/"
# What is installed already was not unpacked.
if [ -e "$debian/lib/go/bin/go" ]; then
    GOROOT=$(readlink -f "$debian/lib/go")
    export GOROOT PATH=$GOROOT/bin:$PATH
fi
export GO111MODULE=off GOFLAGS='' GOPATH=$made/go:$debian/share/gocode:/usr/share/gocode GOCACHE=$made/go/cache
quietly go vet idempotence
quietly go vet "$root/clients/go/tests/agent.go"
quietly go build -o "$made/agent" "$root/clients/go/tests/agent.go"
formatted=$(gofmt -l "$root/clients/go")
[ -z "$formatted" ] || die "gofmt would change $formatted"

# JDBC knows no Unix sockets.
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
timeout 500 "$python" -m pytest -p no:cacheprovider -p conftest -q --tb=short "$here/test_agents.py" || status=1
keys=200 kills=20
[ -z "${IDEM_LONG:-}" ] || keys=5000 kills=500
# The compiler that starts quickly: the chaos ends Java often.
for agent in "java -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp $jars Agent" "$made/agent"; do
    # shellcheck disable=SC2086 # several words
    timeout 1200 "$python" "$root/clients/chaos/chaos.py" --data "$server_dir/data" --bin "$server_bin" --uri "$IDEM_URI" \
        --keys $keys --kills $kills -- $agent chaos '{port}' '{tcp}' || status=1
done
exit $status
