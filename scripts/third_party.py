#!/usr/bin/env python3
"""third_party.py [--check | --sbom]: writes THIRD-PARTY, the crates that are in the library and their licences.

With --check it fails where THIRD-PARTY says something else. With --sbom it writes what is in the library as CycloneDX, to
target/dist, and prints the path. It always fails where a crate offers no licence that is accepted here. It looks at what
cargo has fetched for a build, and asks nobody.
"""

import json
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILE = ROOT / "THIRD-PARTY"
TARGETS = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]

# The licences that are accepted, the best first, and the files of a crate that may hold the text.
TEXTS = {
    "PostgreSQL": [],
    "MIT": ["LICENSE-MIT", "LICENSES/MIT.txt", "LICENSE", "LICENSE.txt"],
    "MIT-0": ["LICENSE-MIT0"],
    "Zlib": ["LICENSE"],
    "Unicode-3.0": ["LICENSE-UNICODE"],
    "CC0-1.0": ["LICENSE_CC0", "LICENSE-CC0"],
    "Apache-2.0": ["LICENSE-APACHE"],
}

# For crates that say MIT and have no file.
MIT = """\
Copyright (c) {holder}

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE."""

HEAD = """\
The library of the extension contains code of others. These are the crates, each with the licence under which it is
used here, and then the texts of the licences. The standard library of Rust is in it too.
"""


def cargo(*arguments):
    return subprocess.run(["cargo", *arguments, "--locked"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def described():
    """What cargo knows of all crates here."""
    return json.loads(cargo("metadata", "--format-version=1", *(f"--filter-platform={target}" for target in TARGETS)))


def crates(metadata):
    """Those crates of others that are linked into the library, in order."""
    lines = cargo(
        *"tree -p idempotence --no-default-features --features pg18 -e normal,no-proc-macro --prefix none".split(),
        *(f"--target={target}" for target in TARGETS),
        *("--format", "{p}"),
    )
    linked = {tuple(line.split()[:2]) for line in lines.splitlines() if line}
    packages = [p for p in metadata["packages"] if p["source"] and (p["name"], f"v{p['version']}") in linked]
    return sorted(packages, key=lambda package: (package["name"], package["version"]))


def choose(expression):
    """One accepted licence for each part of an SPDX expression that has to be kept."""
    parts = [set(re.split(r" OR | ?/ ?", part.strip("() "))) for part in expression.split(" AND ")]
    chosen = [next((licence for licence in TEXTS if licence in part), None) for part in parts]
    if None in chosen:
        sys.exit(f"error: no licence of {expression} is accepted: scripts/third_party.py")
    return chosen


def text(package, licence):
    directory = pathlib.Path(package["manifest_path"]).parent
    for name in TEXTS[licence]:
        if (directory / name).is_file():
            lines = (directory / name).read_text().strip().splitlines()
            return "\n".join(line.rstrip() for line in lines)
    if licence != "MIT":
        sys.exit(f"error: {package['name']} has no file with the text of {licence}: scripts/third_party.py")
    return MIT.format(holder=", ".join(re.sub(" <.*>", "", author) for author in package["authors"]))


def page():
    lines, texts = [HEAD], {}
    for package in crates(described()):
        licences = choose(package["license"])
        lines.append(f"{package['name']} {package['version']}: {' and '.join(licences)}")
        for licence in licences:
            texts.setdefault(text(package, licence), []).append(package["name"])
    texts.setdefault(MIT.format(holder="the Rust Project Contributors"), []).append("the standard library of Rust")
    for words, names in texts.items():
        lines += ["", "=" * 100, ", ".join(dict.fromkeys(names)), "=" * 100, "", words]
    return "\n".join(lines) + "\n"


def bill():
    metadata = described()
    own = next(package for package in metadata["packages"] if package["name"] == "idempotence")
    packages = crates(metadata)
    checksums = {
        (package["name"], package["version"]): package.get("checksum")
        for package in tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    }
    reference = {package["id"]: f"pkg:cargo/{package['name']}@{package['version']}" for package in [own, *packages]}

    def component(package):
        choose(package["license"])
        return {
            "type": "library",
            "bom-ref": reference[package["id"]],
            "name": package["name"],
            "version": package["version"],
            "description": (package["description"] or "").strip(),
            "licenses": [{"expression": re.sub(" ?/ ?", " OR ", package["license"])}],
            "purl": reference[package["id"]],
        }

    def checked(package):
        digest = checksums[package["name"], package["version"]]
        return component(package) | {"hashes": [{"alg": "SHA-256", "content": digest}]}

    nodes = {node["id"]: node["deps"] for node in metadata["resolve"]["nodes"]}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(own)},
        "components": [checked(package) for package in packages],
        "dependencies": [
            {"ref": name, "dependsOn": sorted({reference[d["pkg"]] for d in nodes[identity] if d["pkg"] in reference})}
            for identity, name in reference.items()
        ],
    }


match sys.argv[1:]:
    case []:
        FILE.write_text(page())
    case ["--check"]:
        if FILE.read_text() != page():
            sys.exit("error: THIRD-PARTY is not what Cargo.lock makes: scripts/third_party.py")
    case ["--sbom"]:
        contents = bill()
        path = ROOT / f"target/dist/idempotence-{contents['metadata']['component']['version']}.cdx.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(contents, indent=2) + "\n")
        print(path.relative_to(ROOT))
    case _:
        sys.exit(__doc__)
