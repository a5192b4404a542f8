#!/usr/bin/env python3
"""Fails if a page links to a file of this tree that is not there, or to a heading that the page does not have."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```.*?^```$", flags=re.MULTILINE | re.DOTALL)


def anchors(page):
    """The names of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), flags=re.MULTILINE)
    names = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return {name if names[:at].count(name) == 0 else f"{name}-{names[:at].count(name)}" for at, name in enumerate(names)}


def faults(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", page.read_text())):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists():
            yield f"{page.relative_to(ROOT)}: there is no {path}"
        elif anchor and file.suffix == ".md" and anchor not in anchors(file):
            yield f"{page.relative_to(ROOT)}: {path or page.name} has no heading {anchor}"


def main():
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    # Fragments that a benchmark puts into a page have their links there.
    pages = [ROOT / name for name in listed.stdout.split() if not name.startswith("bench/")]
    found = sorted({fault for page in pages if page.exists() for fault in faults(page)})
    sys.exit("\n".join(found) or None)


main()
