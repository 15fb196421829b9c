"""The servers of the chaos runs, and what can be done to them while an application runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from epochal.testing.drivers import SparkJvm
from epochal.testing.servers.hdfs import HdfsServer, hdfs
from epochal.testing.servers.kafka import KafkaServer, kafka
from epochal.testing.servers.postgresql import PostgresqlServer, postgresql


@dataclass(frozen=True)
class Servers:
    """One of each, and one JVM for all drivers."""

    kafka: KafkaServer
    postgresql: PostgresqlServer
    hdfs: HdfsServer
    jvm: SparkJvm

    def disturb(self, what: str) -> None:
        """Something happens to a server; afterwards it is there again."""
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
            case _:
                raise ValueError(f"nothing is known of {what!r}")


DISTURBANCES = ("broker killed", "broker paused", "database stopped", "name node killed", "safe mode")


@contextmanager
def running_servers() -> Iterator[Servers]:
    """Raises ``ServerUnavailable`` where one cannot be had."""
    with ExitStack() as stack:
        yield Servers(
            kafka=stack.enter_context(kafka()),
            postgresql=stack.enter_context(postgresql()),
            hdfs=stack.enter_context(hdfs()),
            jvm=stack.enter_context(SparkJvm()),
        )
