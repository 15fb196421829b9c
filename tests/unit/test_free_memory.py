"""Default number of spare drivers by free memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from epochal.service.runtime.free_memory import free_bytes, usual_warm_drivers

GIB = 1 << 30


@pytest.mark.parametrize(
    ("machine", "limit", "free"),
    [(8, None, 8 * GIB), (8, "max", 8 * GIB), (8, 4 * GIB, 3 * GIB), (8, 64 * GIB, 8 * GIB), (None, None, None)],
)
def test_free_memory_is_the_lesser_of_machine_and_container(
    tmp_path: Path, machine: int | None, limit: str | int | None, free: int | None
) -> None:
    if machine is not None:
        (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:  {machine << 20} kB\n")
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{GIB}\n")
    assert free_bytes(tmp_path / "meminfo", tmp_path) == free


@pytest.mark.parametrize(("free", "number"), [(6 * GIB, 1), (6 * GIB - 1, 0), (None, 0)])
def test_no_spare_driver_is_the_default_when_memory_is_short(free: int | None, number: int) -> None:
    found, why = usual_warm_drivers(free)
    assert (found, bool(why)) == (number, number == 0)
