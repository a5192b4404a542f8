#!/usr/bin/env python3
"""golden.py RESULTS [--races] [NAME...]: runs the extension's golden SQL, and its isolation specs, against
the edition for managed services.

golden.list tells which files apply, and why others do not, and which statements are left out of a file, and why. What is left
differs from the extension's answers in nothing, or in what differences/NAME.diff lists. With UPDATE=1 in the environment these
files are written anew.
"""

import difflib
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
GOLDEN = HERE.parent / "pg_regress"
DATABASE = os.environ["MANAGED_DATABASE"]
# As pg_regress sets them.
SETTINGS = "-c idempotence.unrecorded=error -c intervalstyle=postgres_verbose -c datestyle=Postgres,MDY -c timezone=PST8PDT"
CONTEXT = re.compile(r"^(CONTEXT:|PL/pgSQL function |SQL (statement|function) |\s+(SELECT|INSERT|UPDATE) .*\"$)")


# What PostgreSQL adds to its error about a function that does not exist. Versions differ in it.
OF_NO_FUNCTION = re.compile(
    r"\+ *(HINT: +No function matches|DETAIL: +(No function of that name|A function of that name|There is no function))"
)


def comparable(difference):
    """The lines of a difference in which no two versions of PostgreSQL differ."""
    return [line for line in difference if not OF_NO_FUNCTION.match(line)]


def listed():
    """The files that apply; those that do not; those that are about something else; and the patterns of statements that are left
    out of all files or of one."""
    runs, skips, apart, without = [], {}, {}, []
    for line in (HERE / "golden.list").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        word, what, reason = line.split(None, 2)
        if word in ("run", "race"):
            runs.append((what if word == "run" else what + ".spec", reason))
        elif word in ("skip", "skip_race"):
            skips[what if word == "skip" else what + ".spec"] = reason
        elif word in ("apart", "apart_race"):
            apart[what if word == "apart" else what + ".spec"] = reason
        else:
            of, _, pattern = what.rpartition(":")
            without.append((of, re.compile(pattern.replace("%s", " "))))
    return runs, skips, apart, without


def statements(lines):
    """The lines of a file in groups: a statement, a command of psql or a comment each."""
    group, quoted = [], False
    for line in lines:
        group.append(line)
        quoted ^= line.count("$$") % 2 == 1 or line.count("$_$") % 2 == 1
        bare = line.split(" --")[0].rstrip()
        is_end = bare.endswith(";") or bare.startswith(("\\", "--")) or "\\gset" in bare or not bare
        if not quoted and (is_end or len(group) == 1 and not bare):
            yield group
            group = []
    if group:
        yield group


def answered(lines, output):
    """Which lines of an output that echoes its input come behind which line of the input."""
    behind, at = [[] for _ in lines], -1
    for line in output:
        if at + 1 < len(lines) and line == lines[at + 1]:
            at += 1
        elif at >= 0:
            behind[at].append(line)
    assert at == len(lines) - 1, f"the output echoes {lines[at + 1]!r} nowhere"
    return behind


def compared(parts):
    """The difference of parts, each a title, what the extension answers there, and what this edition does. How wide a column
    is goes by its values, and is no difference. A role that was dropped stays as a number, each time another one."""
    difference = []
    for title, *both in parts:
        wanted, found = (
            [re.sub(r"\|\d{5,}$", "|(number)", re.sub(r"(-)-+|( ) +", r"\1\2", line.rstrip())) for line in lines]
            for lines in both
        )
        lines = list(difflib.unified_diff(wanted, found, n=0, lineterm=""))[2:]
        if lines:
            difference += [f"@@ {title}", *(line for line in lines if not line.startswith("@@"))]
    return difference


def run(name, without, results):
    """Gives the difference to the extension's answers."""
    # psql does not echo empty lines.
    lines = [line for line in (GOLDEN / "sql" / f"{name}.sql").read_text().splitlines() if line]
    expected = (GOLDEN / "expected" / f"{name}.out").read_text().splitlines()
    behind, at, kept, wanted, titles, left_out, unset = answered(lines, expected), 0, [], [], [], 0, set()
    patterns = [pattern for of, pattern in without if of in ("", name)]
    for group in statements(lines):
        places, at = range(at, at + len(group)), at + len(group)
        text = "\n".join(group)
        leaves = any(pattern.search(text) for pattern in patterns) or any(f":'{variable}'" in text for variable in unset)
        # What is done with a variable goes with the statement that sets it.
        if match := re.match(r"\\set (\w+)", text):
            (unset.add if leaves else unset.discard)(match[1])
        if leaves and not group[0].startswith("--"):
            left_out += 1
            continue
        kept += group
        wanted += [[line for line in behind[place] if not CONTEXT.match(line)] for place in places]
        titles += [group[0]] * len(group)
    found = subprocess.run(
        ["psql", "-X", "-a", "-q", "-d", DATABASE, "-v", "SHOW_CONTEXT=never"],
        input="\n".join(kept) + "\n", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        env={**os.environ, "PGOPTIONS": SETTINGS},
    ).stdout.splitlines()
    (results / f"{name}.out").write_text("\n".join(found) + "\n")
    return compared(zip(titles, wanted, answered(kept, found))), len(kept), left_out


def permutations(output):
    """What an isolation spec answers, by permutation."""
    parts = re.split(r"^starting permutation: ", output, flags=re.MULTILINE)[1:]
    return {part.split("\n", 1)[0]: part.split("\n")[1:] for part in parts}


def race(name, without, results):
    """The same for an isolation spec, of which permutations are left out."""
    specs = HERE.parent / "isolation"
    # A database of its own, for a spec that fails leaves what it has made.
    for command in ("DROP DATABASE IF EXISTS race", "CREATE DATABASE race TEMPLATE fresh"):
        subprocess.run(["psql", "-X", "-q", "-d", "postgres", "-c", command], stderr=subprocess.DEVNULL, check=True)
    # Two tables of the extension are one here; setup.sql has views of their names. An outcome may be in outcome_long besides.
    spec = re.sub(r"TRUNCATE idempotence\.lease(, idempotence\.checkpoint)?", "TRUNCATE idempotence.pending", (specs / "specs" / f"{name}.spec").read_text())
    spec = spec.replace("UPDATE idempotence.outcome_0 ", "UPDATE idempotence.outcome ")
    patterns = [pattern for of, pattern in without if of == f"{name}.spec"]
    lines = [line for line in spec.splitlines() if not (line.startswith("permutation ") and any(pattern.search(line) for pattern in patterns))]
    output = subprocess.run(
        [os.environ["ISOLATIONTESTER"], "dbname=race"], input="\n".join(lines) + "\n", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        env={**os.environ, "PGOPTIONS": f"{SETTINGS} -c search_path=public,idempotence", "PGISOLATIONTIMEOUT": "30"},
    ).stdout
    (results / f"{name}.spec.out").write_text(output)
    wanted, found = permutations((specs / "expected" / f"{name}.out").read_text()), permutations(output)
    wanted = {title: answers for title, answers in wanted.items() if not any(pattern.search(title) for pattern in patterns)}
    left_out = len(spec.splitlines()) - len(lines)
    return compared((title, answers, found.get(title, ["was not run"])) for title, answers in wanted.items()), len(wanted), left_out


def main():
    results = pathlib.Path(sys.argv[1])
    names = [argument for argument in sys.argv[2:] if argument != "--races"]
    runs, skips, apart, without = listed()
    all_names = {path.stem for path in (GOLDEN / "sql").glob("*.sql")} | {path.name for path in (HERE.parent / "isolation" / "specs").glob("*.spec")}
    missing = all_names - {name for name, _ in runs} - set(skips) - set(apart)
    assert not missing, f"golden.list does not tell of {sorted(missing)}"
    failed, same = 0, 0
    for command in ("DROP DATABASE IF EXISTS fresh", f"CREATE DATABASE fresh TEMPLATE {DATABASE}"):
        subprocess.run(["psql", "-X", "-q", "-d", "postgres", "-c", command], stderr=subprocess.DEVNULL, check=True)
    for name, _ in runs:
        if names and name not in names or not names and name.endswith(".spec") and "--races" not in sys.argv:
            continue
        difference, lines, left_out = race(name[:-5], without, results) if name.endswith(".spec") else run(name, without, results)
        file = HERE / "differences" / f"{name}.diff"
        reasons = [line for line in file.read_text().splitlines() if line.startswith("#")] if file.exists() else []
        allowed = [line for line in file.read_text().splitlines() if not line.startswith("#")] if file.exists() else []
        if os.environ.get("UPDATE"):
            if difference:
                file.write_text("\n".join(reasons + difference) + "\n")
            elif file.exists():
                file.unlink()
        elif comparable(difference) != comparable(allowed):
            failed += 1
            print(f"not ok - {name}")
            print("\n".join(difflib.unified_diff(allowed, difference, "listed", "found", lineterm="", n=1)))
            continue
        same += not difference
        told = f"{sum(line[0] in '+-' for line in difference)} lines differ as listed" if difference else "the same"
        what = ("permutations", "permutations") if name.endswith(".spec") else ("lines", "statements")
        print(f"ok - {name}: {lines} {what[0]}, {left_out} {what[1]} left out, {told}")
    print(f"{same} without a difference, {failed} failed")
    for what, suffix in ("golden SQL", ""), ("isolation specs", ".spec"):
        some, none = ([name for name in names if name.endswith(".spec") == bool(suffix)] for names in (dict(runs), skips))
        share = len(some) / (len(some) + len(none))
        told = f"{len(some)} of the {len(some) + len(none)} {what} about what this edition has apply: {share:.0%}"
        print(f"{'ok' if share >= 0.6 else 'not ok'} - {told}")
        failed += share < 0.6
    sys.exit(failed > 0)


main()
