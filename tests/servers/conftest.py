"""Installations that several stories use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from epochal.testing.servers.control_plane import ControlPlane, control_plane
from epochal.testing.servers.s3_proxy import S3Proxy


@pytest.fixture
def s3_installation(s3_proxy: S3Proxy, bucket: str, tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane in a process of its own, with its store in an empty bucket behind the proxy."""
    variables = {**s3_proxy.environment(), "EPOCHAL_STORE": f"s3://{bucket}/installation"}
    with control_plane(tmp_path / "plane", variables) as running:
        yield running
