"""Wrong ways to answer look-ups."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.mutants.mutant import change, mutant

FAST = "tests/service/test_lookups_fast_path.py"
LOOKUPS = "tests/service/test_lookups.py"
SINCE = "tests/service/test_acceptance.py"


@mutant("look-ups: a deleted token can still read", FAST)
def _any_token_reads() -> None:
    from epochal.service.runtime.authenticator import Authenticator

    change(Authenticator, "may_read", lambda _: lambda self, authorization: True)


@mutant("look-ups: every answer names the epoch of the first answer", LOOKUPS)
def _stale_epoch() -> None:
    from epochal.service.api.fast_lookups import FastLookups

    def wrong(answer: Any) -> Any:
        def stale(self: FastLookups, url: bytes, headers: Any) -> Any:
            self._replicas.table = cache(type(self._replicas).table.__get__(self._replicas))  # type: ignore[method-assign]
            return answer(self, url, headers)

        return stale

    change(FastLookups, "answer", wrong)


@mutant("look-ups: pipelined requests are answered out of order", FAST)
def _out_of_order() -> None:
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


@mutant("look-ups: since is that of the latest committed epoch, not of the snapshot read", SINCE)
def _since_of_the_head() -> None:
    from epochal.service.queries.state.lookups import Lookups

    def wrong(past: Any) -> Any:
        def of_the_head(self: Lookups, application: str, table: str, reference: Any) -> Any:
            format, reader = past(self, application, table, reference)
            followed = self._replicas.table(application, table)
            assert followed is not None
            reader.since = lambda at: followed.table.partial_since
            return format, reader

        return of_the_head

    change(Lookups, "past", wrong)


@mutant("look-ups: fast look-ups omit since", FAST)
def _no_since_in_fast_lookups() -> None:
    from epochal.service.api.fast_lookups import _Form

    def wrong(of: Any) -> Any:
        def complete(table: Any, at: Any) -> Any:
            value = tuple(column.model_copy(update={"since": None}) for column in table.value)
            return of(table.model_copy(update={"value": value}), at)

        return complete

    change(_Form, "of", wrong)
