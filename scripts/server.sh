# Sourced: one private server. It listens on a Unix socket only, so that its port meets nobody else's.
#
#   server_start PG_CONFIG [SETTING...]   makes a cluster and starts it, sets PGHOST and the like
#   server_stop                           stops the server if it runs
#   server_remove                         stops the server if it runs, and removes its files
#   $server_log                           the path of its log
#
# shellcheck shell=bash disable=SC2034

server_dir='' server_socket='' server_bin='' server_log=''

server_start() {
    local data
    server_bin=$("$1" --bindir)
    shift
    server_dir=$(mktemp -d "$(private_dir)/server.XXXXXX")
    # Not beside the data, since a socket's path must be short.
    server_socket=$(mktemp -d)
    [ "$(id -u)" -ne 0 ] || chown postgres: "$server_dir" "$server_socket"
    data=$server_dir/data
    server_log=$server_dir/log

    as_server_user "$server_bin/initdb" -D "$data" -U postgres -A trust -E UTF8 \
        --locale=C.UTF-8 --no-sync >/dev/null
    {
        echo "listen_addresses = ''"
        echo "unix_socket_directories = '$server_socket'"
        echo 'max_prepared_transactions = 10'
        [ $# -eq 0 ] || printf '%s\n' "$@"
    } >>"$data/postgresql.conf"
    if ! as_server_user "$server_bin/pg_ctl" -D "$data" -l "$server_log" -w -t 60 start \
        >/dev/null; then
        cat "$server_log" >&2
        return 1
    fi
    export PGHOST=$server_socket PGPORT=5432 PGUSER=postgres PGDATABASE=postgres
}

server_stop() {
    local data=$server_dir/data
    [ -e "$data/postmaster.pid" ] || return 0
    as_server_user "$server_bin/pg_ctl" -D "$data" -m fast -w -t 60 stop >/dev/null ||
        as_server_user "$server_bin/pg_ctl" -D "$data" -m immediate -w stop >/dev/null
}

server_remove() {
    [ -n "$server_dir" ] || return 0
    server_stop
    rm -rf "$server_dir" "$server_socket"
    server_dir=''
}
