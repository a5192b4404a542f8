#!/usr/bin/env python3
"""Checks that META.json says of the extension what Cargo.toml says, and names files that are there; and that all places
that list the supported versions of PostgreSQL list those of Cargo.toml."""

import json
import pathlib
import re
import sys
import tomllib

root = pathlib.Path(__file__).resolve().parent.parent
cargo = tomllib.loads((root / "Cargo.toml").read_text())
package = cargo["package"]
meta = json.loads((root / "META.json").read_text())
provided = meta["provides"][package["name"]]


def in_text(file, pattern):
    """What the first group of a pattern matches in a file."""
    found = re.search(pattern, (root / file).read_text())
    return found[1] if found else ""


def numbers(text):
    return [int(number) for number in text.split()]


fixed_releases = in_text("scripts/common.sh", r"fixed_releases=\((.*)\)")
versions = sorted(int(feature[2:]) for feature in cargo["features"] if re.fullmatch(r"pg\d+", feature))
oldest, newest = versions[0], versions[-1]
checks = [
    ("META.json: the name", meta["name"], package["name"]),
    ("META.json: the version", meta["version"], package["version"]),
    ("META.json: the extension's version", provided["version"], package["version"]),
    ("META.json: the extension's file", provided["file"], f"sql/{package['name']}--{package['version']}.sql"),
    (
        "META.json: the range of PostgreSQL",
        meta["prereqs"]["runtime"]["requires"]["PostgreSQL"],
        f">= {oldest}.0.0, < {newest + 1}.0.0",
    ),
    ("debian/pgversions", numbers((root / "debian/pgversions").read_text()), versions),
    (
        "scripts/common.sh: fixed_releases",
        [int(version) for version in re.findall(r"\[(\d+)\]", fixed_releases)],
        versions,
    ),
    (
        "scripts/common.sh: server_version",
        numbers(in_text("scripts/common.sh", r"(?m)^ *(\d+(?: \| \d+)+)\) echo").replace("|", " ")),
        versions,
    ),
    # The suite tests the newest version with its own script, postgresql_19.sh.
    (
        "scripts/common.sh: test_versions",
        numbers(in_text("scripts/common.sh", r"test_versions=\((.*)\)")) + [newest],
        versions,
    ),
    (
        ".github/workflows/test.yml",
        numbers(in_text(".github/workflows/test.yml", r"version: \[(.*)\]").replace(",", " ")) + [newest],
        versions,
    ),
]
faults = [f"{what} is {found!r}, and not {wanted!r}" for what, found, wanted in checks if found != wanted]
faults += [f"META.json: there is no {file}" for file in (provided["file"], provided["docfile"]) if not (root / file).exists()]
if faults:
    print("\n".join(faults))
sys.exit(bool(faults))
