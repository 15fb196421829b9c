"""A sample of the chaos runs: `make chaos` runs hundreds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.history import History
from tests.chaos.servers import Servers, running_servers
from tests.servers import or_skipped

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    yield from or_skipped(running_servers())


@pytest.mark.parametrize("seed", [1])
def test_whatever_happens_every_record_is_in_every_sink_once(seed: int, servers: Servers, tmp_path: Path) -> None:
    told = History(seed, tmp_path, servers).live(lives=4)
    assert told.violations == []
    assert told.fired.total() > 0
