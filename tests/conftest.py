"""What every layer of tests shares: one SparkSession and one PostgreSQL server for the whole run."""

from __future__ import annotations

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
from tests.kit import spark_workers
from tests.kit.servers import or_skipped

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Executors and Python workers must run the interpreter that runs the tests.
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
# Else EPOCHAL_FAULTS has no effect in the processes that tests start.
os.environ.setdefault(faults.SWITCH, "1")
# Folders of tests are closed to other users; that drivers run as one is tested in tests/service/test_isolation.py.
os.environ.setdefault("EPOCHAL_DRIVER_USER", str(os.geteuid()))
# Spare drivers are what tests/service/test_spares.py is about; elsewhere they would only cost time.
os.environ.setdefault("EPOCHAL_WARM_DRIVERS", "0")
# Every JVM of a test is short-lived: the second compiler would cost it more than it gains.
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
    # As drivers have it: workers that are forked with their imports done, and no call stack kept of every Column.
    "spark.python.daemon.module": spark_workers.MODULE,
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # A pause of two minutes, or a clock that is set, is not the end of the only executor.
    "spark.storage.blockManagerHeartbeatTimeoutMs": "36500d",
}
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Of plans that run over a few rows and never again: to generate and compile code for each takes a quarter of the
processor time. A run with tests marked ``long`` does without, as do drivers that are processes of their own."""


pytest_plugins = (
    "tests.kit.workers",
    "tests.kit.lengths",
    "tests.kit.sampling",
    "tests.kit.selection",
    "tests.kit.recording",
    "tests.kit.statements",
)

# How many examples Hypothesis tries: `make test-all` asks for the thorough profile.
hypothesis.settings.register_profile("quick", max_examples=16, deadline=None)
hypothesis.settings.register_profile("thorough", max_examples=100, deadline=None)
hypothesis.settings.load_profile("quick")


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A small local session, as the local launcher makes them: two cores, no web page, no adaptive execution."""
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
    with suppress(Exception):  # what a JVM that has died had left to do has failed its test; its end is none of theirs
        session.stop()


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    """A PostgreSQL server for the run; the test is skipped, with the reason, where it cannot be had."""
    yield from or_skipped(postgresql())


@pytest.fixture
def postgresql_url(postgresql_server: PostgresqlServer) -> str:
    """The SQLAlchemy URL of an empty database, made for this test alone."""
    return postgresql_server.create_database()


@pytest.fixture(scope="session")
def _postgresql_catalog(postgresql_server: PostgresqlServer) -> str:
    """The name of a database with this version's tables, to be copied."""
    url = postgresql_server.create_database()
    migrate(url)
    return url.rpartition("/")[2]


@pytest.fixture
def postgresql_catalog_url(postgresql_server: PostgresqlServer, _postgresql_catalog: str) -> str:
    """The SQLAlchemy URL of an empty catalog, made for this test alone."""
    return postgresql_server.create_database(template=_postgresql_catalog)


@pytest.fixture(scope="session")
def hdfs_server() -> Iterator[HdfsServer]:
    """An HDFS for the run; the test is skipped, with the reason, where it cannot be had."""
    yield from or_skipped(hdfs())


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    """A Kafka broker for the run, which has a secured listener, too; the test is skipped, with the reason, where it
    cannot be had."""
    yield from or_skipped(kafka(secured=True))


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariadbServer]:
    """A MariaDB server for the run; the test is skipped, with the reason, where it cannot be had."""
    yield from or_skipped(mariadb())


@pytest.fixture
def mariadb_url(mariadb_server: MariadbServer) -> str:
    """The SQLAlchemy URL of an empty database, made for this test alone."""
    return mariadb_server.create_database()
