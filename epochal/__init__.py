"""Epochal: epochs, state and exactly-once sinks for Apache Spark."""

from __future__ import annotations

__version__ = "0.1.0"
