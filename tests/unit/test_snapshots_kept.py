"""What is kept in memory stays within its bounds, and the least used goes first."""

from __future__ import annotations

from epochal.snapshots.row_groups import SizedCache


def test_the_least_used_goes_first() -> None:
    kept: SizedCache[str] = SizedCache(100)
    for name in "abcd":
        kept.put(name, name.upper(), 25)
    assert kept.get("a") == "A"
    kept.put("e", "E", 25)
    assert [kept.get(name) for name in "abcde"] == ["A", None, "C", "D", "E"]


def test_sizes_count_once_and_what_is_too_large_is_not_kept() -> None:
    kept: SizedCache[int] = SizedCache(100)
    for number in range(50):
        kept.put("same", number, 25)
    kept.put("other", 1, 25)
    kept.put("large", 1, 26)
    assert [kept.get(name) for name in ("same", "other", "large")] == [49, 1, None]
    kept.clear()
    assert kept.get("same") is None
