"""A key/value store: pure mutable state, as in section 6.1 of the SDG paper."""

from __future__ import annotations

from epochal.programs import Map, Partitioned, entry, program


@program
class KeyValueStore:
    """Values by key. Each call touches one key, so that calls of different keys run in parallel."""

    values: Partitioned[Map[str, str]]

    @entry
    def put(self, key: str, value: str) -> None:
        """Set the value of a key."""
        self.values.put(key, value)

    @entry
    def get(self, key: str) -> str | None:
        """The value of a key; None: it has none."""
        return self.values.get(key)

    @entry
    def delete(self, key: str) -> bool:
        """Remove a key; whether it was there."""
        known = self.values.contains(key)
        self.values.remove(key)
        return known

    @entry
    def compare_and_set(self, key: str, expected: str | None, value: str) -> bool:
        """Set the value of a key if it is the expected one; whether it was."""
        if self.values.get(key) != expected:
            return False
        self.values.put(key, value)
        return True
