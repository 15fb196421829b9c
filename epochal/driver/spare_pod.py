"""A spare driver in a pod: Spark is started and trained, with executors where it has some, before there is an
application.

The control plane that keeps the pod says what Spark is started with. From then on the pod asks whether an attempt has
been written down that it is the driver of; any control plane knows that. It fetches its orders then as every driver in
a pod does. When nobody keeps it and nobody has written it down, it ends.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path

import httpx
from pydantic import ValidationError

from epochal.driver.keeper import PATIENCE_SECONDS, Keeper, NotWanted
from epochal.driver.orders import CONTROL_PLANES_VARIABLE, TOKEN_FILE_VARIABLE, SpareOrders
from epochal.driver.pod import fetched_orders, spark_in_this_pod
from epochal.driver.spare import ORPHAN_SECONDS, STARTED, Warm
from epochal.errors import EnvironmentProblem
from epochal.wire.internal_api import CONTROL_PLANES_HEADER, WAIT_SECONDS, TakenFor
from epochal.wire.trust import trusted

log = logging.getLogger("epochal.driver")

_PAUSE_SECONDS = 0.5
_CALL_SECONDS = 5.0
_CONNECT_SECONDS = 2.0


class Askers:
    """Whose driver this pod is, asked of all control planes in turn: the one that keeps it first."""

    def __init__(self, pod: str, environment: Mapping[str, str], patience_seconds: float = PATIENCE_SECONDS) -> None:
        """Raises ``EnvironmentProblem`` where this is no such pod."""
        try:
            self.control_planes = environment[CONTROL_PLANES_VARIABLE].split()
            """As the last answer said."""
            self._token_file = Path(environment[TOKEN_FILE_VARIABLE])
        except KeyError as error:
            raise EnvironmentProblem(f"A spare's pod needs {error}, as its control plane gives it.") from None
        self._path = f"/internal/v1/pods/{pod}/attempt"
        self._patience_seconds = patience_seconds
        timeout = httpx.Timeout(WAIT_SECONDS + _CALL_SECONDS, connect=_CONNECT_SECONDS)
        self._http = httpx.Client(timeout=timeout, trust_env=False, verify=trusted())
        self._kept_at = time.monotonic()

    def attempt(self, ready: bool, seconds: float) -> TakenFor | None:
        """``None``: nobody's, and somebody keeps it, or did a moment ago. Raises :class:`NotWanted`."""
        why = ""
        for url in list(self.control_planes):
            try:
                # Behind one address there may be several control planes: another connection may lead to another one.
                headers = {"Authorization": f"Bearer {self._token_file.read_text().strip()}", "Connection": "close"}
                query = f"?ready={str(ready).lower()}&seconds={seconds:g}"
                answer = self._http.get(url + self._path + query, headers=headers)
            except (httpx.TransportError, OSError) as error:
                why = repr(error)
                continue
            if answer.is_success:
                said = answer.headers.get(CONTROL_PLANES_HEADER, "").split()
                self.control_planes = said or self.control_planes
            if answer.status_code == HTTPStatus.OK:
                try:
                    return TakenFor.model_validate_json(answer.content)
                except ValidationError:
                    why = "an answer that cannot be read"
            elif answer.status_code == HTTPStatus.NO_CONTENT:
                self._kept_at = time.monotonic()
                return None
            else:
                why = f"HTTP status {answer.status_code}"
        if time.monotonic() - self._kept_at > self._patience_seconds:
            raise NotWanted(f"No control plane has kept this pod for {self._patience_seconds:g} s: {why}")
        time.sleep(_PAUSE_SECONDS)
        return None

    def close(self) -> None:
        self._http.close()


class SparePod:
    """This process, until it has orders."""

    def __init__(self, pod: str, warm: Warm, environment: Mapping[str, str] = os.environ) -> None:
        """Raises ``EnvironmentProblem``."""
        self._pod = pod
        self._warm = warm
        self._environment = environment
        self._askers = Askers(pod, environment)
        self._is_ready = False
        self._taken: TakenFor | None = None
        self._is_asked = threading.Event()
        """Somebody wants this pod, or nobody does any more."""
        self._done = threading.Event()

    def orders(self) -> bytes | None:
        """Get ready, and wait for the orders of a driver; ``None``: nobody has any. Raises what fetching them does."""
        try:
            begun = self._what_to_begin_with()
        except NotWanted as reason:
            log.info("this spare ends: %s", reason)
            return None
        threading.Thread(target=self._ask, name="spare", daemon=True).start()
        began = time.monotonic()
        warmed = self._warm(begun, self._is_asked.is_set)
        log.info("this spare is ready, after %.1f s", time.monotonic() - began)
        self._is_ready = True
        while not self._is_asked.wait(WAIT_SECONDS):
            warmed.check()
        self._done.set()
        self._askers.close()
        if self._taken is None:
            warmed.stop()
            return None
        warmed.check()
        control_planes = {CONTROL_PLANES_VARIABLE: " ".join(self._askers.control_planes)}
        name = f"{self._taken.execution}-{self._taken.attempt}"
        orders = fetched_orders(name, {**self._environment, **control_planes})
        STARTED.hit()
        return orders

    def _what_to_begin_with(self) -> SpareOrders:
        keeper = Keeper.of(self._pod, self._environment)
        while (work := keeper.work(False, WAIT_SECONDS)) is None:
            pass
        return spark_in_this_pod(SpareOrders.model_validate_json(work), self._environment)

    def _ask(self) -> None:
        try:
            while self._taken is None:
                self._taken = self._askers.attempt(self._is_ready, WAIT_SECONDS if self._is_ready else 1.0)
        except NotWanted as reason:
            log.info("this spare ends: %s", reason)
        self._is_asked.set()
        # Spark's start may hang, and what hangs is not to stay behind.
        if self._taken is None and not self._done.wait(ORPHAN_SECONDS):
            os._exit(0)
