"""A key/value store: pure mutable state, as in section 6.1 of the SDG paper."""

from __future__ import annotations

from pydantic import BaseModel, Field

from epochal import Pipeline
from epochal.connectors import files
from epochal.programs import Map, Partitioned, entry, program


class Parameters(BaseModel):
    input: str | None = Field(None, description="a folder with folders put and get of calls: JSON with at, key, value")
    output: str = Field("answers", description="a folder for the answers of get, if calls are read from files")


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
        """Return the value of a key; None if the key has none."""
        return self.values.get(key)

    @entry
    def delete(self, key: str) -> bool:
        """Remove a key. Returns whether it existed."""
        known = self.values.contains(key)
        self.values.remove(key)
        return known

    @entry
    def compare_and_set(self, key: str, expected: str | None, value: str) -> bool:
        """Set the value of a key if it is the expected one. Returns whether it was."""
        if self.values.get(key) != expected:
            return False
        self.values.put(key, value)
        return True


def build(parameters: Parameters) -> Pipeline:
    pipeline = Pipeline("key-value-store")
    store = pipeline.program(KeyValueStore)
    if parameters.input is None:
        store.serve()
        return pipeline
    for name, columns in {"put": "at timestamp, key string, value string", "get": "at timestamp, key string"}.items():
        calls = files.source(f"{parameters.input}/{name}/*.json", format="json", schema=columns)
        store.feed(name, pipeline.read(name, calls), order_by="at", keep=("key", "at"))
    store.results("get").write("answers", files.sink(parameters.output, format="json"))
    return pipeline
