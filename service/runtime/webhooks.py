"""Deliveries to webhooks: one thread, all receivers concurrently, the events of each in order.

Deliveries are stored in the catalog, and removed from it after the receiver has answered: a restart loses no event, and
may deliver an event again. Receivers detect duplicates by the event's id.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
from contextlib import suppress
from datetime import timedelta

import httpx

from epochal.background.service import BackgroundService
from epochal.errors import CatalogUnavailable, InvalidInput, OutcomeUnknown
from epochal.service.catalog.database import Database
from epochal.service.catalog.webhooks import Claimed, Delivery, WebhookRepository
from epochal.service.domain.addresses import check_address, check_host
from epochal.service.domain.events import ABORTED, COMMITTED, EXECUTION, Topics
from epochal.service.domain.secrets import signature
from epochal.service.runtime.events.async_notifier import AsyncNotifier
from epochal.service.runtime.events.hub import EventHub

log = logging.getLogger("epochal.webhooks")

ROUND_SECONDS = 1.0
"""Interval between reads of the catalog without an event of this process."""
ANSWER_SECONDS = 10.0
"""Timeout for a delivery, from the resolution of the receiver's name to its answer."""
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 600.0
DISABLED_AFTER = timedelta(hours=24)
MOST_WAITING = 10_000
"""Maximum number of waiting events of one webhook; older ones are dropped."""
_BATCH = 20
_BATCH_SECONDS = 30.0
_CLAIM_SECONDS = _BATCH_SECONDS + 2 * ANSWER_SECONDS
_BOUND_EVERY_ROUNDS = 60
_GONE = 410


class NotTaken(Exception):
    """The receiver has not accepted an event; the text is the reason. ``gone``: the receiver accepts no further
    events."""

    def __init__(self, reason: str, gone: bool = False) -> None:
        super().__init__(reason)
        self.gone = gone


class WebhookDeliveries:
    """A component."""

    def __init__(self, database: Database, events: EventHub, local: bool) -> None:
        """``local``: also deliver to loopback and link-local addresses."""
        self._database = database
        self._local = local
        self._notifier = AsyncNotifier()
        self._service = BackgroundService(
            "webhooks", lambda: asyncio.run(self._run()), ROUND_SECONDS, self._notifier.ring
        )
        events.listen(self._heard)

    def open(self) -> None:
        self._service.start()

    def close(self) -> None:
        self._service.stop()

    def _heard(self, topics: Topics) -> None:
        if topics & {COMMITTED, ABORTED, EXECUTION}:
            self._notifier.ring()

    async def _run(self) -> None:
        under_way: dict[str, asyncio.Task[None]] = {}
        rounds = 0
        with self._notifier.listener() as listener:
            while not self._service.stopping:
                listener.forget()
                under_way = {id: task for id, task in under_way.items() if not task.done()}
                try:
                    for id in self._due(bound=rounds % _BOUND_EVERY_ROUNDS == 0):
                        if id not in under_way:
                            under_way[id] = asyncio.create_task(self._deliver(id))
                except (CatalogUnavailable, OutcomeUnknown) as error:
                    log.warning("webhooks are delayed: %s", error)
                except Exception:
                    log.exception("cannot read webhooks")
                rounds += 1
                await listener.wait(ROUND_SECONDS)

    def _due(self, bound: bool) -> list[str]:
        if bound:
            with self._database.writing() as session:
                WebhookRepository(session).bound(MOST_WAITING)
        with self._database.reading() as session:
            return list(WebhookRepository(session).due())

    async def _deliver(self, id: str) -> None:
        try:
            with self._database.writing() as session:
                claimed = WebhookRepository(session).claim(id, _CLAIM_SECONDS, _BATCH)
            if claimed is not None:
                await self._deliver_claimed(claimed)
        except (CatalogUnavailable, OutcomeUnknown) as error:
            log.warning("webhook %s is delayed: %s", id, error)
        except Exception:
            log.exception("cannot deliver events to webhook %s", id)
        else:
            self._notifier.ring()  # There may be more.

    async def _deliver_claimed(self, claimed: Claimed) -> None:
        until = time.monotonic() + _BATCH_SECONDS
        taken: list[int] = []
        failure: NotTaken | None = None
        try:
            for delivery in claimed.deliveries:
                if time.monotonic() > until:
                    break
                await self._post(claimed, delivery)
                taken.append(delivery.id)
        except NotTaken as error:
            failure = error
        finally:  # also when the control plane stops meanwhile: the claim is then free immediately
            self._settle(claimed, taken, failure)

    async def _post(self, claimed: Claimed, delivery: Delivery) -> None:
        """Deliver one event. Raises ``NotTaken``."""
        body, seconds = delivery.body.encode(), int(time.time())
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "epochal-webhooks",
            "Epochal-Event-Id": delivery.event,
            "Epochal-Event": delivery.kind,
            "Epochal-Signature": signature(claimed.secret, seconds, body),
        }
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                status = await self._status(httpx.URL(claimed.url), headers, body)
        except TimeoutError:
            raise NotTaken(f"no answer within {ANSWER_SECONDS:g} s") from None
        except InvalidInput as error:
            raise NotTaken(error.message) from None
        except (httpx.HTTPError, OSError) as error:
            raise NotTaken(f"{type(error).__name__}: {error}"[:500]) from None
        if not httpx.codes.is_success(status):
            redirected = " (redirects are not followed)" if httpx.codes.is_redirect(status) else ""
            raise NotTaken(f"the receiver answered {status}{redirected}", gone=status == _GONE)

    async def _status(self, url: httpx.URL, headers: dict[str, str], body: bytes) -> int:
        """Post to the address that was checked: resolving the name again may return another one."""
        address = await address_of(url, self._local)
        async with httpx.AsyncClient(trust_env=False, follow_redirects=False, timeout=ANSWER_SECONDS) as client:
            request = client.build_request(
                "POST",
                url.copy_with(host=address),
                headers={"Host": url.netloc.decode("ascii"), **headers},
                content=body,
                extensions={"sni_hostname": host_of(url)},
            )
            response = await client.send(request, stream=True)
            await response.aclose()  # The body of the answer is not read.
            return response.status_code

    def _settle(self, claimed: Claimed, taken: list[int], failure: NotTaken | None) -> None:
        with self._database.writing() as session:
            repository = WebhookRepository(session)
            row = repository.settle(claimed, taken)
            if row is None or failure is None:
                return
            moment = row.next_at
            row.failures += 1
            row.failing_since = row.failing_since or moment
            row.last_error = str(failure)
            row.next_at = moment + timedelta(seconds=_pause(row.failures))
            if failure.gone or moment - row.failing_since > DISABLED_AFTER:
                repository.disable(row, moment)
                log.error("webhook %s is disabled: %s; %d events were given up", claimed.id, failure, row.dropped)
                return
        log.warning("webhook %s: %s; the delivery is retried", claimed.id, failure)


async def address_of(url: httpx.URL, local: bool) -> str:
    """The address to deliver to: the host's name is resolved once, and the connection uses the result. Raises
    ``InvalidInput`` if one of the addresses is refused, unless ``local``."""
    port = url.port or (443 if url.scheme == "https" else 80)
    found = await asyncio.get_running_loop().getaddrinfo(host_of(url), port, type=socket.SOCK_STREAM)
    addresses = [str(item[4][0]) for item in found]
    if not local:
        check_host(host_of(url))
        for address in addresses:
            check_address(address)
    return addresses[0]


def host_of(url: httpx.URL) -> str:
    """The host as it is sent and resolved: names in ASCII."""
    return url.raw_host.decode("ascii").strip("[]")


def _pause(failures: int) -> float:
    """Pause in seconds, doubled with each failure, and randomized so that receivers of many webhooks do not get all at
    the same time."""
    with suppress(OverflowError):
        return min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** (failures - 1)) * random.uniform(0.5, 1.0)
    return LONGEST_PAUSE_SECONDS
