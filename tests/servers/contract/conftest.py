"""What the contract tests of databases share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.server),
        pytest.param("mariadb", marks=pytest.mark.server),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'database.sqlite'}"
    return str(request.getfixturevalue(f"{request.param}_url"))
