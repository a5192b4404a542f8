#!/usr/bin/env python3
"""Compares the server's functions that src/ declares by hand with pgrx's bindings of each supported version of PostgreSQL.

The compiler checks calls of pgrx's bindings. A function that is declared by hand is linked by its name only, so a parameter
that a new version adds would go unnoticed. Reports a declaration that has another number of parameters than the bindings of
a version, and one whose parameters change their types between versions although the declaration does not depend on the
version. Prints nothing where all is well."""

import glob
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = [15, 16, 17, 18, 19]
# Functions that pgrx's bindings leave out, and functions of the C library. Their declarations were compared manually with the
# headers of each version. Compare a name that you add here in the same way.
NOT_BOUND = {
    "RegisterTimeout", "disable_timeout", "enable_timeout_after", "enable_timeout_every",  # utils/timeout.h
    "errcode", "errstart", "pg_re_throw",  # utils/elog.h
    "malloc", "free",  # the C library
}


def include_directory():
    """The directory of pgrx-pg-sys that has the bindings of all versions."""
    metadata = subprocess.run(
        ["cargo", "metadata", "--locked", "--format-version", "1"], cwd=ROOT, check=True, capture_output=True
    )
    for package in json.loads(metadata.stdout)["packages"]:
        if package["name"] == "pgrx-pg-sys":
            return Path(package["manifest_path"]).parent / "src" / "include"
    sys.exit("error: the workspace does not depend on pgrx-pg-sys")


def without_comments(text):
    return re.sub(r"//[^\n]*", "", text)


def split_parameters(text):
    """Splits at the commas that are in no brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "(<[") - (char in ")>]")
        if char == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts if part.strip()]


def bindings(directory, version):
    """The types of the parameters of each function, as pgrx binds it for a version."""
    text = (directory / f"pg{version}.rs").read_text()
    functions = {}
    for name, parameters in re.findall(r"pub fn (\w+)\s*\((.*?)\)\s*(?:->[^;]+)?;", text, flags=re.DOTALL):
        functions[name] = [each.split(":", 1)[-1].strip().replace("*const", "*mut") for each in split_parameters(parameters)]
    return functions


def declarations():
    """(file, name, parameters) of each function that is declared in an extern block."""
    for path in sorted(glob.glob(f"{ROOT}/src/**/*.rs", recursive=True)):
        text = without_comments(Path(path).read_text())
        for block in re.findall(r'unsafe extern "C(?:-unwind)?" \{(.*?)\n\s*\}', text, flags=re.DOTALL):
            pattern = r'((?:#\[[^\]]*\]\s*)*)(?:pub(?:\([a-z]+\))? )?(?:safe |unsafe )?fn (\w+)\s*\((.*?)\)\s*(?:->[^;]+)?;'
            for attributes, name, parameters in re.findall(pattern, block, flags=re.DOTALL):
                linked = re.search(r'link_name = "(\w+)"', attributes)
                linked = linked.group(1) if linked else name
                yield Path(path).relative_to(ROOT), linked.removeprefix("__real_"), split_parameters(parameters)


def holds(condition, version):
    """Whether a condition of build.rs holds for a version: before_pgN, not(…), any(…), all(…)."""
    if found := re.fullmatch(r"before_pg(\d+)", condition):
        return version < int(found.group(1))
    word, inner = re.fullmatch(r"(not|any|all)\((.*)\)", condition, flags=re.DOTALL).groups()
    values = [holds(each, version) for each in split_parameters(inner)]
    return not values[0] if word == "not" else any(values) if word == "any" else all(values)


def condition_of(parameter):
    found = re.match(r"#\[cfg\((.*?)\)\]\s*\w+\s*:", parameter, flags=re.DOTALL)
    return found.group(1) if found else None


def main():
    directory = include_directory()
    bound = {version: bindings(directory, version) for version in VERSIONS}
    faults = []
    for path, name, parameters in declarations():
        known = [version for version in VERSIONS if name in bound[version]]
        if not known and name not in NOT_BOUND:
            faults.append(f"{path}: {name} is not in pgrx's bindings: compare it with the headers of each version")
        conditions = [condition_of(each) for each in parameters]
        for version in known:
            count = sum(condition is None or holds(condition, version) for condition in conditions)
            if count != len(bound[version][name]):
                faults.append(f"{path}: {name} has {count} parameters; PostgreSQL {version}: {len(bound[version][name])}")
        if len({tuple(bound[version][name]) for version in known}) > 1 and not any(conditions):
            faults.append(f"{path}: the parameters of {name} differ between versions, but its declaration does not")
    print("\n".join(faults), end="\n" if faults else "")
    sys.exit(bool(faults))


main()
