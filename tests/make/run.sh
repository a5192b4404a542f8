#!/usr/bin/env bash
# run.sh: what make says, and what it leaves, where a server, a right or a fitting Cargo.lock is
# missing. On a copy of the tree, with a cargo that builds nothing. One line a test.
# shellcheck disable=SC2317 # the functions are called through check
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../../scripts/common.sh"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
tree=$work/tree programs=$work/programs
mkdir "$tree" "$programs"
tar -C "$root" --exclude=./target --exclude=./.git -cf - . | tar -C "$tree" --no-same-owner -xf -

# As the real one, but that it compiles nothing: `cargo build` looks at Cargo.lock, and leaves a library.
cargo=$(command -v cargo)
cat >"$programs/cargo" <<STUB
#!/bin/sh
set -e
[ "\$1" = build ] || exec "$cargo" "\$@"
case " \$* " in *' --locked '*) locked=--locked ;; esac
"$cargo" metadata \$locked --format-version 1 >/dev/null
echo "\$locked" >flags
mkdir -p "\$CARGO_TARGET_DIR/release"
echo library >"\$CARGO_TARGET_DIR/release/libidempotence.so"
STUB
for version in 14.9 15.0; do
    cat >"$programs/pg_config-${version%.*}" <<STUB
#!/bin/sh
case \$1 in
    --version) echo 'PostgreSQL $version' ;;
    --bindir) echo /usr/lib/idem/bin ;;
    --pkglibdir) echo /usr/lib/idem ;;
    --sharedir) echo /usr/share/idem ;;
    --includedir-server) echo $programs/headers ;;
esac
STUB
done
printf '#!/bin/sh\necho hello\n' >"$programs/hello"
chmod 755 "$programs"/*
mkdir "$programs/headers"
PATH=$programs:$PATH

failed=0
# check NAME COMMAND...
check() {
    local name=$1
    shift
    if "$@" >"$work/said" 2>&1; then
        echo "ok $name"
    else
        echo "not ok $name"
        cat "$work/said" "$work/output" 2>/dev/null || true
        failed=1
    fi
}

# fails_with PATTERN COMMAND...: it fails, the only error told besides make's is of that kind, and no
# shell complains.
fails_with() {
    local pattern=$1
    shift
    ! "$@" >"$work/output" 2>&1 || return 1
    [ "$(grep -c '^error: ' "$work/output")" -eq 1 ] && grep -q "^error: $pattern" "$work/output" &&
        ! grep -E '^(install|sh|bash|[^ ]*\.sh): |line [0-9]+:' "$work/output"
}

# An interrupted or failed build is no build, so that each of these stands for itself.
for target in all install uninstall package installcheck lint; do
    check "$target without a server" \
        fails_with 'there is no /nonexistent\.' make -C "$tree" PG_CONFIG=/nonexistent "$target"
done
check 'a version that is not supported' \
    fails_with 'pg_config-14 belongs to PostgreSQL 14;' make -C "$tree" PG_CONFIG=pg_config-14
check 'a program that is no pg_config' \
    fails_with 'hello is no pg_config' make -C "$tree" PG_CONFIG=hello installcheck

mkdir "$work/old"
printf '#!/bin/sh\necho "rustc 1.80.0"\n' >"$work/old/rustc"
chmod 755 "$work/old/rustc"
check 'a Rust that is too old' \
    fails_with 'Rust is 1\.80\.0 here, and the extension needs 1\.' \
    env PATH="$work/old:$PATH" make -C "$tree" PG_CONFIG=pg_config-15

# All programs but clang.
mkdir "$work/few"
ln -s "$cargo" "$(dirname "$cargo")/rustc" /usr/bin/* "$work/few/" 2>/dev/null || true
rm -f "$work/few"/clang*
check 'no clang' \
    fails_with 'there is no clang' env PATH="$programs:$work/few" make -C "$tree" PG_CONFIG=pg_config-15
check 'a server without headers' \
    fails_with "there are no headers of the server in $programs/headers\\. .* postgresql-server-dev-15)" \
    make -C "$tree" PG_CONFIG=pg_config-15
touch "$programs/headers/postgres.h"

builds_locked() { make -C "$tree" PG_CONFIG=pg_config-15 && [ "$(cat "$tree/flags")" = --locked ]; }
check 'a build uses the versions in Cargo.lock' builds_locked

refuses_stale_lock() {
    local tree=$work/stale
    cp -r "$work/tree" "$tree" && rm -rf "$tree/target" "$tree/flags" &&
        sed -i 's/^version = .*/version = "99.0.0"/' "$tree/Cargo.toml" || return 1
    ! make -C "$tree" PG_CONFIG=pg_config-15 >"$work/output" 2>&1 &&
        grep -q '^error: .*lock file .*--locked' "$work/output" &&
        cmp "$tree/Cargo.lock" "$root/Cargo.lock" && [ ! -e "$tree/flags" ]
}
check 'a Cargo.lock that does not fit is left as it is' refuses_stale_lock

installs() {
    mkdir "$work/there" && (cd "$work" && make -C "$tree" PG_CONFIG=pg_config-15 DESTDIR=../there install) &&
        [ "$(stat -c %a "$work/there/usr/lib/idem/idempotence.so")" = 755 ] &&
        [ "$(stat -c %a "$work/there/usr/share/idem/extension/idempotence.control")" = 644 ]
}
check 'installing below a directory' installs

uninstalls() {
    touch "$work/there/usr/share/idem/extension/another.control"
    make -C "$tree" PG_CONFIG=pg_config-15 DESTDIR="$work/there" uninstall &&
        [ "$(find "$work/there" -type f)" = "$work/there/usr/share/idem/extension/another.control" ]
}
check 'uninstalling leaves what is not ours' uninstalls

# The way to one file is open, to the other it is not: neither is installed.
refuses_without_right() {
    mkdir -p "$work/closed/usr/lib/idem" "$work/closed/usr/share" &&
        chmod 777 "$work/closed/usr/lib/idem" && chmod 555 "$work/closed/usr/share" &&
        fails_with "cannot write to $work/closed/usr/share\\." \
            as_server_user env PATH="$programs:$PATH" \
            make -C "$tree" PG_CONFIG=pg_config-15 DESTDIR="$work/closed" install &&
        [ -z "$(find "$work/closed" -type f)" ]
}
check 'installing without the right to' refuses_without_right

exit $failed
