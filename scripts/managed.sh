#!/usr/bin/env bash
# managed.sh: packs the edition for managed services for pg_tle: writes target/dist/idempotence_managed--VERSION.pg_tle.sql,
# which calls pgtle.install_extension. After it, CREATE EXTENSION idempotence_managed makes what
# sql/managed/idempotence_managed.sql does.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

cd "$root"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
packed=target/dist/idempotence_managed--$version.pg_tle.sql
mkdir -p target/dist
{
    printf "SELECT pgtle.install_extension('idempotence_managed', '%s', 'makes a retried request take effect once', \$_pgtle_\$\n" "$version"
    # What a restore brings takes the place of the rows that CREATE EXTENSION has made.
    for table in settings segment; do
        echo "DROP TRIGGER IF EXISTS restored ON idempotence.$table;"
    done
    # CREATE EXTENSION is a transaction itself.
    sed -e '/^BEGIN;$/d' -e '/^COMMIT;$/d' sql/managed/idempotence_managed.sql
    # What a dump must hold, for of an extension it holds no rows.
    cat <<'SQL'
CREATE OR REPLACE FUNCTION idempotence._restored() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF TG_RELID = 'idempotence.settings'::regclass THEN DELETE FROM idempotence.settings;
  ELSE DELETE FROM idempotence.segment s WHERE s.number = NEW.number; END IF;
  RETURN NEW;
END $$;
CREATE TRIGGER restored BEFORE INSERT ON idempotence.settings FOR EACH ROW EXECUTE FUNCTION idempotence._restored();
CREATE TRIGGER restored BEFORE INSERT ON idempotence.segment FOR EACH ROW EXECUTE FUNCTION idempotence._restored();
DO $$
DECLARE r regclass;
BEGIN
  FOR r IN SELECT c.oid FROM pg_catalog.pg_class c WHERE c.relnamespace = 'idempotence'::regnamespace AND c.relkind IN ('r', 'S') LOOP
    PERFORM pg_catalog.pg_extension_config_dump(r, '');
  END LOOP;
END $$;
SQL
    echo "\$_pgtle_\$);"
} >"$packed"
write_sums
say "wrote $packed"
