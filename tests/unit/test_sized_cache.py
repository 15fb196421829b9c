"""The cache keeps within its size and evicts the least recently used value first."""

from __future__ import annotations

from epochal.snapshots.immutable_cache import SizedCache


def test_the_least_recently_used_value_is_evicted_first() -> None:
    cache: SizedCache[str] = SizedCache(100)
    for name in "abcd":
        cache.put(name, name.upper(), 25)
    assert cache.get("a") == "A"
    cache.put("e", "E", 25)
    assert [cache.get(name) for name in "abcde"] == ["A", None, "C", "D", "E"]


def test_replaced_values_count_once_and_large_values_are_not_cached() -> None:
    cache: SizedCache[int] = SizedCache(100)
    for number in range(50):
        cache.put("same", number, 25)
    cache.put("other", 1, 25)
    cache.put("large", 1, 26)
    assert [cache.get(name) for name in ("same", "other", "large")] == [49, 1, None]
    cache.clear()
    assert cache.get("same") is None
