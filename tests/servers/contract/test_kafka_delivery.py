"""kafka.sink with delivery at_least_once, without transactions, on a real broker."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from epochal.backends.kafka.backend import KafkaBackend
from epochal.contracts.backend import SinkBackend, SinkPlace
from epochal.contracts.configuration import Delivery
from epochal.contracts.handle import Handle
from epochal.snapshots import layout
from epochal.snapshots.manifest import SinkHandles
from epochal.testing.direct_sink_contract import DirectSinkContract, DirectSinkHarness
from epochal.testing.servers.kafka import KafkaServer
from epochal.testing.sink_contract import APPLICATION, BRANCH, OWNER
from tests.kit.manifests import plain_manifest
from tests.servers.contract.test_kafka_sink import Topic


class DirectTopic(Topic, DirectSinkHarness):
    def make(self, delivery: Delivery | None = None) -> SinkBackend:
        return KafkaBackend(SinkPlace(OWNER, self.place.store, delivery or "at_least_once"), self.settings)

    def leftovers(self) -> list[str]:
        return [path for path in super().leftovers() if "/manifests/" not in path]


@pytest.mark.server
@pytest.mark.claim(
    "docs/concepts/guarantees.md: Epochs that were decided before are committed as they were prepared",
    "docs/concepts/guarantees.md: After a change from `at_least_once` to `exactly_once` no later row is lost or "
    "doubled.",
)
class TestKafkaAtLeastOnce(DirectSinkContract):
    @pytest.fixture
    def harness(self, kafka_server: KafkaServer, tmp_path: Path) -> DirectSinkHarness:
        return DirectTopic(kafka_server, tmp_path)

    def decided(self, harness: DirectSinkHarness, backend: SinkBackend, number: int, handles: Sequence[Handle]) -> None:
        """Record the decision in a manifest, because no marker names the epoch."""
        assert isinstance(harness, DirectTopic)
        assert harness.place.store is not None
        sinks = {OWNER: SinkHandles(kind=backend.kind, target=backend.target, handles=tuple(handles))}
        manifest = plain_manifest(number, application=APPLICATION, branch=BRANCH, sinks=sinks)
        harness.place.store.write(layout.manifest(manifest.key, 1), manifest.encode())
