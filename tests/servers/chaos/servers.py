"""The servers of the chaos runs and the disturbances applied to them while an application runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace

from epochal.testing.drivers import SparkJvm, driver_server
from epochal.testing.fork_server import ForkServer
from epochal.testing.servers.hdfs import HdfsServer, hdfs
from epochal.testing.servers.kafka import KafkaServer, kafka
from epochal.testing.servers.postgresql import PostgresqlServer, postgresql
from epochal.testing.servers.process import LOOPBACK
from epochal.testing.servers.proxy import TcpProxy, proxy
from epochal.testing.servers.s3 import SeaweedServer
from tests.servers.chaos.machines import Machines, machines
from tests.servers.chaos.store import ObjectStore, object_store, with_proxy


@dataclass(frozen=True)
class Servers:
    """One server of each kind, one JVM for all drivers, and the server that forks drivers, where fork is available.

    Drivers and tasks reach the servers through proxies.
    """

    kafka: KafkaServer
    postgresql: PostgresqlServer
    hdfs: HdfsServer
    jvm: SparkJvm
    postgresql_proxy: TcpProxy
    hdfs_proxy: TcpProxy
    store: ObjectStore
    drivers: ForkServer | None = None
    machines: Machines | None = None
    """``None``: tasks run in the driver's JVM."""

    @property
    def name_node(self) -> str:
        """The NameNode's address, through its proxy."""
        return f"http://{LOOPBACK}:{self.hdfs_proxy.port}"

    def disturb(self, what: str) -> None:
        """Disturb a server; it is available again on return."""
        match what:
            case "broker killed":
                self.kafka.restart(kill=True)
            case "broker paused":
                with self.kafka.paused():
                    time.sleep(2)
            case "database stopped":
                self.postgresql.stop_immediately()
                self.postgresql.start_again()
            case "name node killed":
                self.hdfs.restart_name_node(kill=True)
            case "safe mode":
                self.hdfs.enter_safe_mode()
                time.sleep(1)
                self.hdfs.leave_safe_mode()
            case "connections cut":
                for _ in range(3):
                    self._each(TcpProxy.reset)
                    time.sleep(0.5)
            case "answers late":
                self._each(lambda proxy: proxy.delay(0.1))
                time.sleep(2)
                self._each(TcpProxy.heal)
            case "black hole":
                self._each(TcpProxy.hold)
                time.sleep(2)
                self._each(TcpProxy.reset)
                self._each(TcpProxy.heal)
            case _:
                raise ValueError(f"unknown disturbance {what!r}")

    def _each(self, action: Callable[[TcpProxy], None]) -> None:
        for each in (self.kafka.proxy, self.postgresql_proxy, self.hdfs_proxy):
            action(each)


DISTURBANCES = (
    "broker killed",
    "broker paused",
    "database stopped",
    "name node killed",
    "safe mode",
    "connections cut",
    "answers late",
    "black hole",
)


@contextmanager
def running_servers(cluster: bool = False) -> Iterator[Servers]:
    """Servers of one worker process. ``cluster``: with three machines. Raises ``ServerUnavailable`` if one cannot be
    started."""
    with (
        machines() if cluster else nullcontext() as executing,
        postgresql() as database,
        hdfs() as folders,
        kafka() as broker,
        object_store() as store,
        _with_proxies(database, folders, broker, store) as servers,
    ):
        yield replace(servers, machines=executing)


@contextmanager
def with_proxies(
    database: PostgresqlServer, folders: HdfsServer, broker: KafkaServer, objects: SeaweedServer
) -> Iterator[Servers]:
    """Put proxies before running servers, and start the JVM and the fork server for drivers."""
    with with_proxy(objects) as store, _with_proxies(database, folders, broker, store) as servers:
        yield servers


@contextmanager
def _with_proxies(
    database: PostgresqlServer, folders: HdfsServer, broker: KafkaServer, store: ObjectStore
) -> Iterator[Servers]:
    """The JVM, whose Python workers have the credentials of the store, starts after the store."""
    with ExitStack() as stack:
        drivers = driver_server("tests.servers.chaos.driver")
        yield Servers(
            kafka=broker,
            postgresql=database,
            hdfs=folders,
            jvm=stack.enter_context(SparkJvm()),
            postgresql_proxy=stack.enter_context(proxy(database.port)),
            hdfs_proxy=stack.enter_context(proxy(int(folders.url.rpartition(":")[2]))),
            store=store,
            drivers=None if drivers is None else stack.enter_context(drivers),
        )
