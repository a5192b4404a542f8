"""What prevents requests: for the start of a service."""

from __future__ import annotations

from typing import Any

from ._drivers import driver_of
from ._errors import sqlstate
from ._run import ask
from ._transactions import Driver


class Problems(list[str]):
    """One sentence for each problem. edition: what is installed, "extension 1.2.0" or "managed 1.2.0"."""

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


_EDITION = """
SELECT coalesce((SELECT 'extension ' || extversion FROM pg_extension WHERE extname = 'idempotence'),
                'managed ' || substring(obj_description(to_regnamespace('idempotence'), 'pg_namespace') FROM '[0-9.]+'))
"""
_SWEEP = "SELECT detail || '; ' || hint FROM idempotence.health WHERE name = 'sweep' AND level > 0"


def check(pool: Any, session: str | None = None) -> Any:
    """What prevents requests in this session: one sentence for each problem, none if all is well. The attribute
    `edition` of the list names what is installed."""
    driver = driver_of(pool)
    return driver.do(_check(driver, session))


async def _check(driver: Driver, session: str | None) -> Problems:
    async def ask_for(sql: str, *args: Any) -> Any:
        """The first value, or the error."""
        try:
            return (await ask(driver, 0, sql, *args))[0]
        except Exception as error:
            return error

    fault = await ask_for(FAULT)
    if isinstance(fault, Exception):
        return Problems([f"unreachable: no connection to the database: {fault}"])
    if fault:
        return Problems([fault])
    problems = Problems()
    edition = await ask_for(_EDITION)
    if isinstance(edition, str):
        problems.edition = edition
        if tuple(int(n) for n in edition.split()[1].split(".")[:2] if n.isdigit()) < (1, 2):
            problems.append(f"version: this client needs idempotence 1.2, and the database has {edition}: update it")
            return problems
    if str(edition).startswith("extension"):  # the edition for managed services has neither
        if await ask_for("SELECT idem_ready()") is not True:
            problems.append("ready: no request can be begun now: SELECT * FROM idempotence.health has the reason")
        if _is(await ask_for("SELECT EXISTS (SELECT FROM idempotence.in_flight)"), "55000"):
            problems.append(
                "preload: the server does not preload the library, so expired outcomes are not removed: add idempotence"
                " to shared_preload_libraries and restart, or CALL idem_sweep() at least once an hour"
            )
    if session is not None:
        found = await ask_for("SELECT status FROM idem_lookup(CAST($1 AS text), 'idempotence check')", session)
        problems += [
            sentence.format(session=session, error=found) for state, sentence in _SESSION.items() if _is(found, state)
        ]
    # Only a monitor can read whether the database is swept.
    swept = await ask_for(_SWEEP)
    if isinstance(swept, str):
        problems.append(f"sweep: {swept}")
    return problems


_SESSION = {
    "42704": "session: there is no session {session}: SELECT idem_create_session('{session}')",
    "42501": "rights: this role may not use the session {session}: its owner lends it by"
    " idem_alter_session('{session}', usable_by => …)",
    "ID012": "session: the session {session} lives on another server: {error}",
}


def _is(found: Any, state: str) -> bool:
    return isinstance(found, Exception) and sqlstate(found) == state
