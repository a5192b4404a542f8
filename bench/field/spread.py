"""The median and the quartiles of measured values, as bench/src/spread.rs has them."""

import math


class Spread:
    def __init__(self, values):
        ordered = sorted(values)
        self.low, self.median, self.high = (quantile(ordered, share) for share in (0.25, 0.5, 0.75))

    def text(self, decimals):
        return f"{self.median:.{decimals}f} [{self.low:.{decimals}f} … {self.high:.{decimals}f}]"


def quantile(ordered, share):
    """A quantile of sorted values. If it falls between two values, it is their weighted mean."""
    place = share * (len(ordered) - 1)
    below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
    return below + (above - below) * (place - math.floor(place))
