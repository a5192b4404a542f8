#!/usr/bin/env python3
"""Checks that META.json says of the extension what Cargo.toml says, and names files that are there."""

import json
import pathlib
import sys
import tomllib

root = pathlib.Path(__file__).resolve().parent.parent
package = tomllib.loads((root / "Cargo.toml").read_text())["package"]
meta = json.loads((root / "META.json").read_text())
provided = meta["provides"][package["name"]]
faults = [
    f"META.json: {what} is {found!r}, and not {wanted!r}"
    for what, found, wanted in [
        ("the name", meta["name"], package["name"]),
        ("the version", meta["version"], package["version"]),
        ("the extension's version", provided["version"], package["version"]),
        ("the extension's file", provided["file"], f"sql/{package['name']}--{package['version']}.sql"),
    ]
    if found != wanted
]
faults += [f"META.json: there is no {file}" for file in (provided["file"], provided["docfile"]) if not (root / file).exists()]
if faults:
    print("\n".join(faults))
sys.exit(bool(faults))
