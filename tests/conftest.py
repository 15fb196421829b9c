"""Fixtures for all tests: one SparkSession and one server of each kind for the whole run."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import hypothesis
import pytest

from epochal import faults
from epochal.engine.class_archive import JAVA_OPTIONS
from epochal.engine.session import java_options
from epochal.service.catalog.migration import migrate
from epochal.testing.servers.hdfs import HdfsServer, hdfs
from epochal.testing.servers.kafka import KafkaServer, kafka
from epochal.testing.servers.mariadb import MariadbServer, mariadb
from epochal.testing.servers.postgresql import PostgresqlServer, postgresql
from epochal.testing.servers.s3 import S3Server, SeaweedServer, s3
from epochal.testing.servers.s3_proxy import S3Proxy
from epochal.testing.servers.s3_proxy import s3_proxy as new_s3_proxy
from epochal.testing.servers.versitygw import versitygw
from tests.kit import spark_workers
from tests.kit.servers import or_skipped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Executors and Python workers must run the interpreter that runs the tests.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
# Without it, EPOCHAL_FAULTS has no effect in the processes that tests start.
os.environ.setdefault(faults.SWITCH, "1")
# Folders of tests are closed to other users. tests/service/test_isolation.py runs drivers as another user.
os.environ.setdefault("EPOCHAL_DRIVER_USER", str(os.geteuid()))
# Spare drivers cost time in all tests except tests/service/test_spares.py.
os.environ.setdefault("EPOCHAL_WARM_DRIVERS", "0")
# JVMs of tests are short-lived: the optimizing compiler costs more time than it saves.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

SPARK_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
    # As in drivers: workers are forked with their imports done, and Columns record no call stacks.
    "spark.python.daemon.module": spark_workers.MODULE,
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # A pause of two minutes or a clock step must not end the only executor.
    "spark.storage.blockManagerHeartbeatTimeoutMs": "36500d",
}
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Interprets plans instead of generating code. Tests run each plan once over a few rows, and compiling it would take a
quarter of the processor time. Runs with tests marked ``long``, and drivers in processes of their own, generate code."""


pytest_plugins = (
    "tests.kit.workers",
    "tests.kit.lengths",
    "tests.kit.sampling",
    "tests.kit.selection",
    "tests.kit.recording",
    "tests.kit.statements",
    "tests.kit.model_copies",
)

# Numbers of examples that Hypothesis tries. `make test-all` uses the thorough profile.
hypothesis.settings.register_profile("quick", max_examples=16, deadline=None)
hypothesis.settings.register_profile("thorough", max_examples=100, deadline=None)
hypothesis.settings.load_profile("quick")


@pytest.fixture(scope="module", autouse=True)
def _no_event_loop_remains() -> Iterator[None]:
    """Later modules of the worker run event loops of their own, which a remaining one refuses."""
    yield
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A small local session, like those of the local launcher: two cores, no web page, no adaptive execution."""
    from pyspark.sql import SparkSession

    folder = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2]").appName("epochal-tests")
    compiled = any(item.get_closest_marker("long") for item in request.session.items)
    for name, value in (SPARK_SETTINGS if compiled else SPARK_SETTINGS | INTERPRETED).items():
        builder = builder.config(name, value)
    session = (
        builder.config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config(JAVA_OPTIONS, java_options({}))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    with suppress(Exception):  # a JVM that has died has failed its test already
        session.stop()


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    """A PostgreSQL server for the run; tests are skipped, with the reason, where it is not available."""
    yield from or_skipped(postgresql())


@pytest.fixture
def postgresql_url(postgresql_server: PostgresqlServer) -> str:
    """The SQLAlchemy URL of an empty database, created for this test."""
    return postgresql_server.create_database()


@pytest.fixture(scope="session")
def _postgresql_catalog(postgresql_server: PostgresqlServer) -> str:
    """The name of a database with this version's tables, used as a template."""
    url = postgresql_server.create_database()
    migrate(url)
    return url.rpartition("/")[2]


@pytest.fixture
def postgresql_catalog_url(postgresql_server: PostgresqlServer, _postgresql_catalog: str) -> str:
    """The SQLAlchemy URL of an empty catalog, created for this test."""
    return postgresql_server.create_database(template=_postgresql_catalog)


@pytest.fixture(scope="session")
def hdfs_server() -> Iterator[HdfsServer]:
    """An HDFS for the run; tests are skipped, with the reason, where it is not available."""
    yield from or_skipped(hdfs())


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    """A Kafka broker for the run, with a secured listener; tests are skipped, with the reason, where it is not
    available."""
    yield from or_skipped(kafka(secured=True))


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariadbServer]:
    """A MariaDB server for the run; tests are skipped, with the reason, where it is not available."""
    yield from or_skipped(mariadb())


@pytest.fixture
def mariadb_url(mariadb_server: MariadbServer) -> str:
    """The SQLAlchemy URL of an empty database, created for this test."""
    return mariadb_server.create_database()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[SeaweedServer]:
    """An S3 server for the run; tests are skipped, with the reason, where it is not available."""
    yield from or_skipped(s3())


@pytest.fixture(scope="session")
def versitygw_server() -> Iterator[S3Server]:
    """A second implementation of S3 for the run; tests are skipped, with the reason, where it is not available.

    Tests that use it are ``long``: it is built at the first use on a machine.
    """
    yield from or_skipped(versitygw())


@pytest.fixture
def s3_proxy(s3_server: SeaweedServer) -> Iterator[S3Proxy]:
    """A proxy before the S3 server, without faults and with an empty list of requests."""
    with new_s3_proxy(s3_server) as proxy:
        yield proxy


@pytest.fixture
def bucket(s3_server: SeaweedServer) -> str:
    """The name of an empty bucket, created for this test."""
    return s3_server.create_bucket()
