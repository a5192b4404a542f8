"""The section of the page: the results in the words and tables of page.md."""

import collections
import pathlib
import string

from contenders import REFERENCE, VARIANTS
from kills import BOUND_S, LEASE_S, RANDOM, RETRY_S, total
from spread import Spread, quantile
from work import COMMIT, EFFECT

QUICK = "This was a quick run: few rounds and few kills.\n\n"


def section(results, picture):
    """The section as Markdown."""
    page = string.Template((pathlib.Path(__file__).parent / "page.md").read_text())
    some = next(iter(results["crashes"].values()))
    return page.substitute(
        quick=QUICK if results["quick"] else "",
        picture=picture,
        versions=", ".join(f"{name} {version}" for name, version in results["versions"].items()),
        rounds=results["rounds"],
        seconds=f"{results['seconds']:g}",
        rates=by_cell(results, lambda variant, samples, _: spread(samples, "rate").text(0)),
        ratios=by_cell(results, against_reference),
        cpu=cpu(results),
        retry=f"{RETRY_S * 1000:.0f}",
        kills=max(total(result, "kills") for result in results["kills"].values()),
        lease=f"{LEASE_S:g}",
        bound=BOUND_S,
        killed=killed(results),
        crash_requests=some["requests"] // some["crashes"],
        crashes="Once" if some["crashes"] == 1 else f"{some['crashes']} times",
        crashed=crashed(results),
        usage=usage(results),
    )


def spread(samples, what):
    return Spread(sample[what] for sample in samples)


def by_cell(results, text):
    lines = []
    for variant in results["variants"]:
        values = []
        for cell in results["rates"]:
            samples = cell["samples"].get(variant)
            values.append(text(variant, samples, cell["samples"]) if samples else "")
        lines.append([VARIANTS[variant].title, *values])
    return table(["", *(cell["title"] for cell in results["rates"])], lines)


def against_reference(variant, samples, all_samples):
    reference = all_samples.get(REFERENCE)
    if variant == REFERENCE or not reference:
        return "1" if reference else ""
    return Spread(sample["rate"] / other["rate"] for sample, other in zip(samples, reference, strict=True)).text(2)


def cpu(results):
    cells = [cell for cell in results["rates"] if cell["clients"] == 4]
    heads = [""]
    for cell in cells:
        what = "replays" if cell["replays"] else "new requests"
        heads += [f"{what}, servers", f"{what}, client"]
    lines = []
    for variant in results["variants"]:
        line = [VARIANTS[variant].title]
        for cell in cells:
            samples = cell["samples"].get(variant)
            line += [spread(samples, what).text(0) if samples else "" for what in ("server_us", "client_us")]
        lines.append(line)
    return table(heads, lines)


def killed(results):
    heads = [
        "",
        "doubled: killed before the commit",
        "right after the commit",
        "at a random moment",
        "all",
        "lost",
        "stuck",
        "answered after, median",
        "at the latest",
    ]
    lines = []
    for variant, result in results["kills"].items():
        kinds, waits = result["kinds"], result["waits_s"]
        doubled = [f"{kinds[kind]['doubled']} of {kinds[kind]['kills']}" for kind in (EFFECT, COMMIT, RANDOM)]
        of_all = f"**{total(result, 'doubled')}** of {total(result, 'kills')}"
        times = [f"{wait * 1000:.0f} ms" for wait in (quantile(waits, 0.5), waits[-1])] if waits else ["", ""]
        rest = [str(total(result, what)) for what in ("lost", "stuck")]
        lines.append([VARIANTS[variant].contender.title, *doubled, of_all, *rest, *times])
    return table(heads, lines) + last_words(results)


def last_words(results):
    """Of the requests that are stuck: what was answered last, if there are any."""
    said = [
        f"{VARIANTS[variant].contender.title}: {number} times “{words}”"
        for variant, result in results["kills"].items()
        for words, number in collections.Counter(result["stuck"]).items()
    ]
    return f"\n\nThe last answers to requests that were stuck: {'; '.join(said)}." if said else ""


def crashed(results):
    lines = []
    for variant, result in results["crashes"].items():
        keeper = "Redis" if VARIANTS[variant].contender.kept_in == "redis" else "PostgreSQL"
        doubled = f"**{result['doubled']}** of {result['requests']}"
        lines.append([VARIANTS[variant].title, keeper, doubled, str(result["lost"])])
    return table(["", "what crashes", "doubled", "lost"], lines)


def usage(results):
    """How each is used, from the contender itself."""
    contenders = dict.fromkeys(VARIANTS[variant].contender for variant in results["variants"])
    return "\n".join(f"* **{contender.title}**: {' '.join(contender.usage.split())}" for contender in contenders)


def table(heads, lines):
    rows = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    rows += ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join(rows)
