"""The components of a real control plane, as the app factory makes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from epochal.contracts.registry import LAUNCHERS, find
from epochal.service.domain.ports import EventSink, PortFactories, Surroundings
from epochal.service.runtime.builder.subprocess_builder import SubprocessBuilder
from epochal.service.runtime.events.hub import EventHub
from epochal.service.runtime.launchers.base import Launcher
from epochal.service.runtime.replicas.replicas import Replicas
from epochal.service.runtime.supervision.supervisor import ThreadedSupervisor
from epochal.snapshots.store import SnapshotStore


def _events(surroundings: Surroundings) -> EventHub:
    return EventHub(surroundings.settings.data / "events")


def _builder(surroundings: Surroundings) -> SubprocessBuilder:
    return SubprocessBuilder(surroundings.user, surroundings.settings.home_directory)


def _replicas(surroundings: Surroundings, events: EventSink) -> Replicas:
    settings = surroundings.settings
    return Replicas(settings.replicas_directory, SnapshotStore(settings.store_url), surroundings.snapshots, events)


def _supervisor(surroundings: Surroundings, events: EventSink) -> ThreadedSupervisor:
    settings = surroundings.settings
    make: Callable[[Path], Launcher] = find(LAUNCHERS, settings.launcher)
    launcher = make(settings.logs_directory)
    if surroundings.user is not None:
        launcher.run_as(surroundings.user, settings.home_directory)
    return ThreadedSupervisor(settings, surroundings.executions, launcher)


FACTORIES = PortFactories(events=_events, builder=_builder, replicas=_replicas, supervisor=_supervisor)
