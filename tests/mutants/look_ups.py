"""Wrong ways to answer look-ups the short way."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.mutants.mutant import change, mutant

SHORT = "tests/service/test_lookups_short_way.py"
LOOKUPS = "tests/service/test_lookups.py"


@mutant("look-ups: a token that was deleted can still read", SHORT)
def _any_token_reads() -> None:
    from epochal.service.runtime.authenticator import Authenticator

    change(Authenticator, "may_read", lambda _: lambda self, authorization: True)


@mutant("look-ups: the epoch that an answer names is that of the first answer", LOOKUPS)
def _the_epoch_of_before() -> None:
    from epochal.service.api.fast_lookups import FastLookups

    def wrong(answer: Any) -> Any:
        def of_before(self: FastLookups, url: bytes, headers: Any) -> Any:
            self._replicas.table = cache(type(self._replicas).table.__get__(self._replicas))  # type: ignore[method-assign]
            return answer(self, url, headers)

        return of_before

    change(FastLookups, "answer", wrong)


@mutant("look-ups: what follows a request in the connection is answered before it", SHORT)
def _out_of_turn() -> None:
    from epochal.service.api.lookup_protocol import LookupProtocol

    def wrong(answer_here: Any) -> Any:
        def hasty(self: LookupProtocol) -> bool:
            cycle, self.cycle = self.cycle, None
            try:
                return bool(answer_here(self))
            finally:
                self.cycle = cycle

        return hasty

    change(LookupProtocol, "_answer_here", wrong)
