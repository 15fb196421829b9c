"""How many calls one token may make: a bucket for each, of this process, that fills up again as time goes by.

Look-ups by key and calls of entries are left out. They are what an application is asked all the time, the first are
answered before anybody knows of a request (``fast_lookups.py``), and neither takes what others wait for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import Scope

from epochal.errors import TooManyRequests
from epochal.service.api.access import changes_something, is_metered
from epochal.service.domain.permissions import Principal
from epochal.service.domain.settings import Limits

_KEPT: Final = 10_000
_COUNTED: Final = "calls_counted"
OVER_RATE: Final = "over_rate"
"""In a request's state: it was refused for its rate. It is not in the audit log, which it would fill."""


class Buckets:
    """Of one event loop. ``rate``: calls a second; ``most``: how many at once, after a while without any."""

    def __init__(self, rate: float, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._most = most
        self._clock = clock
        self._left: dict[str, tuple[float, float]] = {}
        """By whom: how much was left, and when."""

    def take(self, who: str) -> float:
        """0, or how many seconds it takes until there is one again."""
        moment = self._clock()
        left = self._now(who, moment)
        if left < 1:
            return (1 - left) / self._rate
        if len(self._left) >= _KEPT:
            self._left = {name: at for name, at in self._left.items() if self._now(name, moment) < self._most}
        self._left[who] = left - 1, moment
        return 0.0

    def _now(self, who: str, moment: float) -> float:
        left, at = self._left.get(who, (self._most, moment))
        return min(self._most, left + (moment - at) * self._rate)


class Rates:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._calls = Buckets(limits.calls_per_second, limits.calls_per_second * limits.burst_seconds)
        self._changes = Buckets(limits.changes_per_second, limits.changes_per_second * limits.burst_seconds)

    def count(self, scope: Scope, principal: Principal, endpoint: object) -> None:
        """Once for each request, whoever comes first. Raises ``TooManyRequests``."""
        if scope["state"].get(_COUNTED) or not is_metered(endpoint):
            return
        scope["state"][_COUNTED] = True
        changes = changes_something(endpoint)
        wait = self._calls.take(principal.id) or (self._changes.take(principal.id) if changes else 0.0)
        if wait:
            scope["state"][OVER_RATE] = True
            rate, of = self._limits.calls_per_second, "calls"
            if changes:
                rate, of = self._limits.changes_per_second, "calls that change something"
            who = principal.name if principal.person else f"The token {principal.name!r}"
            raise TooManyRequests(
                f"{who} makes more {of} than the {rate:g} a second that one token may, on average. "
                "Nothing was done; call again in a moment.",
                math.ceil(wait),
            )


def rates_of(connection: HTTPConnection) -> Rates:
    """Those of the process that answers."""
    rates: Rates = connection.app.state.rates
    return rates
