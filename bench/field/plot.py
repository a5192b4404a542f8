"""The picture: the requests a second of each contender as bars, and beside them what the kills have doubled."""

from html import escape

from contenders import REFERENCE, VARIANTS
from kills import total
from spread import Spread

ROW, TOP = 26, 62
NAMES, PANEL, GAP, COLUMN = 320, 250, 60, 110
OURS, OTHERS, REFERENCE_COLOUR = "#2f6db5", "#9aa5b1", "#5f6b78"
GOOD, BAD = "#2c7a3f", "#b3312c"


def picture(results):
    variants = results["variants"]
    panels = [cell for cell in results["rates"] if cell["clients"] == 4]
    marks, left = [], NAMES
    for row, variant in enumerate(variants):
        y = TOP + row * ROW
        if row % 2:
            marks.append(rectangle(0, y, NAMES + len(panels) * (PANEL + GAP) + 2 * COLUMN, ROW, "#f5f6f8"))
        marks.append(text(NAMES - 10, y + 17, plain(VARIANTS[variant].title), anchor="end"))
    for cell in panels:
        marks += panel(cell, variants, left)
        left += PANEL + GAP
    marks += column(["Doubled", "workers killed"], left, variants, lambda variant: of_kills(results, variant))
    crashes = ["Doubled", "store crashed"]
    marks += column(crashes, left + COLUMN, variants, lambda variant: of_crashes(results, variant))
    width, height = left + 2 * COLUMN, TOP + len(variants) * ROW + 14
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12">\n'
        + rectangle(0, 0, width, height, "#ffffff")
        + "".join(marks)
        + "</svg>\n"
    )


def panel(cell, variants, left):
    """A bar for each median, and a line from quartile to quartile."""
    spreads = {
        variant: Spread(sample["rate"] for sample in samples) for variant, samples in cell["samples"].items() if samples
    }
    most = max(spread.high for spread in spreads.values())
    what = "Replays" if cell["replays"] else "New requests"
    marks = [
        text(left, 24, f"{what} a second", weight="bold"),
        text(left, 42, f"{cell['clients']} clients", colour=REFERENCE_COLOUR),
    ]
    for row, variant in enumerate(variants):
        spread = spreads.get(variant)
        if spread is None:
            continue
        middle = TOP + row * ROW + ROW / 2
        low, median, high = (value / most * PANEL for value in (spread.low, spread.median, spread.high))
        marks.append(rectangle(left, middle - 7, median, 14, colour(variant)))
        marks.append(rectangle(left + low, middle - 0.75, high - low, 1.5, "#1b1f24"))
        marks.append(text(left + max(median, high) + 5, middle + 4, f"{spread.median:,.0f}".replace(",", " ")))
    return marks


def column(heads, left, variants, values):
    """How many of the requests took effect twice."""
    middle = left + COLUMN / 2
    marks = [
        text(middle, 24, heads[0], weight="bold", anchor="middle"),
        text(middle, 42, heads[1], colour=REFERENCE_COLOUR, anchor="middle"),
    ]
    for row, variant in enumerate(variants):
        value = values(variant)
        if value is None:
            continue
        doubled, of = value
        colour = BAD if doubled else GOOD
        y = TOP + row * ROW + ROW / 2 + 4
        marks.append(text(middle, y, f"{doubled} of {of}", colour=colour, weight="bold", anchor="middle"))
    return marks


def of_kills(results, variant):
    """Those of the same contender: its workers were killed with one kind of Redis."""
    for killed, result in results["kills"].items():
        if VARIANTS[killed].contender is VARIANTS[variant].contender:
            return total(result, "doubled"), total(result, "kills")
    return None


def of_crashes(results, variant):
    result = results["crashes"].get(variant)
    return result and (result["doubled"], result["requests"])


def colour(variant):
    if variant == REFERENCE:
        return REFERENCE_COLOUR
    return OURS if VARIANTS[variant].contender.__module__.endswith(".idempotence") else OTHERS


def plain(title):
    return title.replace("`", "")


def rectangle(x, y, width, height, fill):
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"/>\n'


def text(x, y, words, *, anchor="start", colour="#1b1f24", weight="normal"):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-weight="{weight}">'
        f"{escape(words)}</text>\n"
    )
