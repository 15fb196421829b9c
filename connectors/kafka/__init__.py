"""Kafka source and sink: ``from epochal.connectors import kafka``."""

from epochal.connectors.kafka.sink import sink
from epochal.connectors.kafka.source import source

__all__ = ["sink", "source"]
