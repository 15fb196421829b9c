"""A follower of events that reconnects to other control planes; each event must arrive once."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True)
class Event:
    number: int
    kind: str
    data: dict[str, Any]


class Listener:
    """Reconnects to another control plane every few seconds and at the end of a stream, after the last event."""

    def __init__(self, urls: Sequence[str], token: str, application: str, seed: int) -> None:
        self.application = application
        self.events: list[Event] = []
        self._urls, self._headers = urls, {"Authorization": f"Bearer {token}"}
        self._chance = random.Random(seed)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(30)

    @property
    def committed(self) -> list[int]:
        return [
            event.data["epoch"] for event in self.events if event.kind == "epoch" and event.data["state"] == "committed"
        ]

    def problems(self, committed: Collection[int]) -> Iterator[str]:
        """``committed``: the committed epochs in the catalog."""
        numbers = [event.number for event in self.events]
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"its events have the numbers {numbers}"
        if self.committed != sorted(committed):
            missing, more = set(committed) - set(self.committed), Counter(self.committed) - Counter(list(committed))
            yield f"events of committed epochs: {sorted(missing)} are missing, {sorted(more)} too many, or in disorder"

    def _run(self) -> None:
        timeout = httpx.Timeout(3.0)
        with httpx.Client(headers=self._headers, trust_env=False, timeout=timeout) as client:
            while not self._stopped.is_set():
                with suppress(httpx.TransportError):
                    self._listen(client)
                self._stopped.wait(0.05)

    def _listen(self, client: httpx.Client) -> None:
        url = f"{self._chance.choice(self._urls)}/v1/applications/{self.application}/events"
        headers = {"Last-Event-ID": str(self.events[-1].number if self.events else 0)}
        until = time.monotonic() + self._chance.uniform(1, 4)
        with client.stream("GET", url, headers=headers) as answer:
            if answer.status_code != 200:
                return
            fields: dict[str, str] = {}
            for line in answer.iter_lines():
                name, _, text = line.partition(": ")
                if line:
                    fields[name] = text
                elif "data" in fields:
                    self.events.append(Event(int(fields["id"]), fields["event"], json.loads(fields["data"])))
                if not line:
                    fields = {}
                    if self._stopped.is_set() or time.monotonic() > until:
                        return
