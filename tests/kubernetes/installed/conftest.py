"""One installation for all tests of the release, as README's reader makes it; what a test took away is made anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest

pytest.importorskip("helm_python", reason="helm-python-sdk is not installed: no wheel for this platform")

from tests.kit.servers import or_skipped
from tests.kubernetes.installed.commands import PAGE, Reader
from tests.kubernetes.installed.installation import Installation, installation
from tests.service.end_to_end.blocks import blocks_of


@pytest.fixture(scope="session")
def installation_of_the_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Skipped, with the reason, where the cluster, or what it needs of this machine, cannot be had."""
    made: AbstractContextManager[Installation] = installation(tmp_path_factory.mktemp("installed"))
    yield from or_skipped(made)


@pytest.fixture
def installed(installation_of_the_run: Installation, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The release is there, and all of its pods are ready."""
    made = installation_of_the_run
    if not made.is_there:
        made.prepare()
        Reader(made, tmp_path_factory.mktemp("reader")).follow(blocks_of(PAGE, "sh")[0])
    made.wait_until_ready()
    return made
