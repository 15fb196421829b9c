"""Fixtures of the fault tests of tests/service/fault, for sinks on real servers."""

from tests.service.fault.conftest import (
    drivers,
    fork_server,
    killed_plane,
    local,
    new_application,
    new_local,
    new_tiered_application,
    own_jvm,
    prepared_application,
    settings,
    tiered_drivers,
    without_spark,
    zombie_jvm,
)

__all__ = [
    "prepared_application",
    "killed_plane",
    "drivers",
    "tiered_drivers",
    "fork_server",
    "local",
    "new_application",
    "new_tiered_application",
    "new_local",
    "own_jvm",
    "settings",
    "without_spark",
    "zombie_jvm",
]
