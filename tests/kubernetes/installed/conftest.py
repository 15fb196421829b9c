"""One installation for all tests of the release, created with the commands of the documentation."""

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
    """A cluster for the run. Tests are skipped, with the reason, where this machine cannot run one."""
    context: AbstractContextManager[Installation] = installation(tmp_path_factory.mktemp("installed"))
    yield from or_skipped(context)


@pytest.fixture
def installed(installation_of_the_run: Installation, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The installed release with all pods ready. It is installed again if a test has removed it."""
    release = installation_of_the_run
    if not release.exists:
        release.prepare()
        Reader(release, tmp_path_factory.mktemp("reader")).follow(blocks_of(PAGE, "sh")[0])
    release.wait_until_ready()
    return release
