"""What prevents requests: for the start of a service."""

from __future__ import annotations

from typing import Any

from ._drivers import driver_of
from ._errors import sqlstate
from ._run import ask
from ._transactions import Driver


class Problems(list[str]):
    """One sentence for each fault. edition: what was found, "extension 1.2.0" or "managed 1.2.0"."""

    edition: str | None = None


# What prevents every request, in the same words in each client: '' if nothing does.
FAULT = """
SELECT coalesce((
  SELECT CASE WHEN lacks IS NOT NULL THEN 'rights: role ' || current_user || ' lacks ' || lacks
                || ': SELECT idem_grant(' || quote_literal(quote_ident(current_user)) || ') as ' || owner
              WHEN NOT visible THEN 'search_path: it lacks ' || nspname || ', the schema of the functions: set it'
              ELSE '' END
  FROM (SELECT nspname, pg_function_is_visible(p.oid) AS visible, pg_get_userbyid(proowner) AS owner,
               CASE WHEN NOT has_schema_privilege(n.oid, 'USAGE') THEN 'USAGE on schema ' || nspname
                    WHEN NOT has_function_privilege(p.oid, 'EXECUTE') THEN 'EXECUTE on ' || proname END AS lacks
        FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace
        WHERE proname IN ('idem_begin', 'idem_lookup', 'idem_ready', 'idem_record')) f
  ORDER BY visible DESC, lacks LIMIT 1),
  'extension: this database has none: CREATE EXTENSION idempotence, or install its edition in SQL')
"""


def check(pool: Any, session: str | None = None) -> Any:
    """What stands in the way of requests in this session: one sentence for each fault, none if all is well.

    The attribute `edition` of the list says what was found."""
    driver = driver_of(pool)
    return driver.do(_check(driver, session))


async def _check(driver: Driver, session: str | None) -> Problems:
    async def asked(sql: str, *args: Any) -> Any:
        """The first value, or the error."""
        try:
            return (await ask(driver, 0, sql, *args))[0]
        except Exception as error:
            return error

    fault = await asked(FAULT)
    if isinstance(fault, Exception):
        fault = f"unreachable: no connection to the database can be had: {fault}"
    problems = Problems([fault] if fault else [])
    if problems:
        return problems
    edition = await asked(
        "SELECT coalesce((SELECT 'extension ' || extversion FROM pg_extension WHERE extname = 'idempotence'),"
        " 'managed ' || substring(obj_description(to_regnamespace('idempotence'), 'pg_namespace') FROM '[0-9.]+'))"
    )
    if isinstance(edition, str):
        problems.edition = edition
        if tuple(int(n) for n in edition.split()[1].split(".")[:2] if n.isdigit()) < (1, 2):
            problems.append(f"version: this client needs idempotence 1.2, and here is {edition}: update it")
            return problems
    # The edition for managed services has no readiness to ask for.
    ready = await asked("SELECT idem_ready()") if str(edition).startswith("extension") else True
    if ready is not True:
        problems.append("ready: no request can be begun here now: SELECT * FROM idempotence.health tells why")
    found = (
        await asked("SELECT status FROM idem_lookup(CAST($1 AS text), 'idempotence check')", session)
        if session
        else None
    )
    sentences = {
        "42704": f"session: there is none of the name {session}: SELECT idem_create_session('{session}')",
        "42501": f"rights: this role may not use the session {session}:"
        " its owner lends it by idem_alter_session(…, usable_by => …)",
        "ID012": f"session: the session {session} lives on another server: {found}",
    }
    if isinstance(found, Exception) and (state := sqlstate(found)) in sentences and not problems:
        problems.append(sentences[state])
    # Of the extension, who is no monitor cannot see whether somebody sweeps.
    swept = await asked("SELECT detail || '; ' || hint FROM idempotence.health WHERE name = 'sweep' AND level > 0")
    if isinstance(swept, str):
        problems.append(f"sweep: {swept}")
    return problems
