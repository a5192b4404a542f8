#!/usr/bin/env python3
"""check_modules.py CRATE_ROOT...: fails if modules of a crate import each other in a circle, or if its top modules do,
where each counts together with all that is in it. A module counts as using its submodules, so a submodule may not use
what its parent defines.

It reads the lines `use`: clippy sees to it that all paths are imported (absolute_paths). Imports of modules for tests do
not count."""

import graphlib
import pathlib
import re
import sys


def modules(root):
    """The sources of a crate by the names of their modules, as tuples: ("a", "b") for src/a/b.rs and src/a/b/mod.rs."""
    found, pending = {}, [((), root)]
    while pending:
        name, file = pending.pop()
        found[name] = without_tests(file.read_text())
        for child in re.findall(r"\bmod (\w+);", found[name]):
            beside = root.parent.joinpath(*name, f"{child}.rs")
            pending.append(((*name, child), beside if beside.exists() else beside.with_suffix("") / "mod.rs"))
    return found


def without_tests(source):
    """The source without comments and without what is compiled for tests only."""
    source = re.sub(r"//.*", "", source)
    kept, rest = "", source
    while match := re.search(r"#\[cfg\(test\)\]\s*(?:pub\s+)?(mod \w+\s*\{|[^{;]*;)", rest):
        kept += rest[: match.start()]
        rest = rest[match.end() :]
        if match[1].endswith("{"):
            depth = 1
            for place, letter in enumerate(rest):
                depth += {"{": 1, "}": -1}.get(letter, 0)
                if depth == 0:
                    rest = rest[place + 1 :]
                    break
    return kept + rest


def paths(tree):
    """The single paths of an import such as a::{b, c::{d, e}}."""
    head, brace, rest = tree.partition("{")
    if not brace:
        return [tree.split(" as ")[0].strip()]
    parts, depth, part = [], 0, ""
    for letter in rest.rpartition("}")[0]:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts, part = [*parts, part], ""
        else:
            part += letter
    return [head.strip() + path for part in [*parts, part] if part.strip() for path in paths(part.strip())]


def imports(name, source, known):
    """The modules whose items a module imports."""
    for tree in re.findall(r"\buse\s+([^;]+);", source):
        for path in paths(re.sub(r"\s+", " ", tree)):
            steps = [step.strip() for step in path.split("::")]
            base = name
            if steps[0] == "crate":
                base, steps = (), steps[1:]
            elif steps[0] == "self":
                steps = steps[1:]
            while steps and steps[0] == "super":
                base, steps = base[:-1], steps[1:]
            target = (*base, *steps)
            while target and target not in known:
                target = target[:-1]
            # A path that begins with the name of another crate leads to no module.
            if target != name and (target or path.startswith(("crate", "super"))):
                yield target


def circle(edges):
    graph = graphlib.TopologicalSorter()
    for user, used in edges:
        graph.add(user, used)
    try:
        graph.prepare()
    except graphlib.CycleError as error:
        return error.args[1]


failed = False
for root in map(pathlib.Path, sys.argv[1:]):
    known = modules(root)
    edges = {(user, used) for user, source in known.items() for used in imports(user, source, known)}
    edges |= {(name[:-1], name) for name in known if name}
    assert len(edges) > len(known), f"{root} imports nothing: the check does not read it"
    top = {(user[:1], used[:1]) for user, used in edges if user and used and user[:1] != used[:1]}
    for graph in (edges, top):
        if found := circle(graph):
            failed = True
            print(f"{root}: " + " uses ".join("::".join(("crate", *name)) for name in reversed(found)))
sys.exit(failed)
