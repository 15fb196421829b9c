"""HDFS without a server: options, error messages and the lines of files."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import requests
from hdfs import HdfsError

from epochal.backends.hdfs.address import address
from epochal.backends.hdfs.client import WebHdfs, translated
from epochal.backends.hdfs.sink import HdfsBackend
from epochal.connectors import hdfs
from epochal.connectors.text_lines import LineFormat
from epochal.contracts.backend import SinkPlace
from epochal.errors import EnvironmentProblem, EpochalError, OptionError, SinkError, SinkUnavailable
from epochal.secrets import secret

URL = "http://namenode:9870"


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"url": "namenode:9870"}, "'namenode:9870' is not a NameNode's WebHDFS address"),
        ({"url": "hdfs://namenode:8020"}, "Use the HTTP address: 'http://namenode:9870'"),
        ({"url": "http://me:password@namenode:9870"}, "name the user with user=, not within the address of namenode"),
        ({"url": " ; "}, "needs the NameNode's WebHDFS address"),
        ({"path": "out"}, "'out' is not a path of HDFS"),
        ({"path": "hdfs://namenode/out"}, "path must not contain an address"),
        ({"path": "/out/#LATEST"}, "is not a path of HDFS"),
        ({"format": "parquett"}, "Did you mean 'parquet'?"),
        ({"usr": "me"}, "Did you mean 'user'?"),
        ({"token": "the token itself"}, "token must be a secret"),
        ({"user": "me", "kerberos": True}, "user, token and kerberos exclude each other"),
        ({"timeout_seconds": 0}, "timeout_seconds is 0"),
    ],
)
def test_invalid_hdfs_sink_options_are_refused(options: dict[str, Any], part: str) -> None:
    with pytest.raises(OptionError) as caught:
        hdfs.sink(**{"url": URL, "path": "/out", **options})
    assert part in caught.value.message
    assert caught.value.message.startswith("hdfs.sink")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"schema": None}, "needs a schema to read json"),
        ({"multiLine": True}, "has no option 'multiLine'"),
        ({"format": "csv", "heade": True}, "Did you mean 'header'?"),
        ({"max_files": 0}, "an integer above 0"),
        ({"malformed": "ignore"}, "one of fail, drop"),
        ({"path": "in/*.json"}, "is not a path of HDFS"),
    ],
)
def test_invalid_hdfs_source_options_are_refused(options: dict[str, Any], part: str) -> None:
    with pytest.raises(OptionError) as caught:
        hdfs.source(**{"url": URL, "path": "/in", "format": "json", "schema": "n int", **options})
    assert part in caught.value.message


def test_targets_do_not_depend_on_the_order_of_name_nodes() -> None:
    names = ["http://two:9870/", "http://one:9870"]
    definitions = [hdfs.sink(names, "/out/"), hdfs.sink(";".join(reversed(names)), "/out")]
    targets = {definition.make(SinkPlace("out")).target for definition in definitions}
    assert targets == {"hdfs:one:9870,two:9870/out"}


def test_tokens_are_absent_from_descriptions_and_pickles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HDFS_TOKEN", "very-secret")
    definition = hdfs.sink(URL, "/out", token=secret("env:HDFS_TOKEN"))
    backend = definition.make(SinkPlace("out"))
    assert isinstance(backend, HdfsBackend)
    assert "very-secret" in str(backend._hdfs.client._session.params)
    assert "very-secret" not in f"{definition.description} {backend.target} {pickle.dumps(backend)!r}"


def test_errors_do_not_contain_the_token() -> None:
    request = requests.Request("PUT", f"{URL}/webhdfs/v1/out", params={"delegation": "very-secret"}).prepare()
    lost = requests.ConnectionError(f"Max retries exceeded with url: {request.url}", request=request)
    with pytest.raises(SinkUnavailable) as caught, translated("Sink 'out'", "write"):
        raise lost
    assert caught.value.message.startswith("Sink 'out' could not write: namenode:9870 cannot be reached")
    assert "very-secret" not in caught.value.message


@pytest.mark.parametrize(
    ("answer", "kind", "part"),
    [
        (
            ("Operation category WRITE is not supported", "StandbyException"),
            SinkUnavailable,
            "List all NameNodes in url",
        ),
        (
            ("File /x could only be written to 0 of the 1", "IOException"),
            SinkUnavailable,
            "no DataNode accepts the file",
        ),
        (("token (..) is expired", "InvalidToken"), SinkError, "Renew the token, or log in (kinit)"),
        (("Authentication failure. Check your credentials.", None), SinkError, "HDFS rejects the credentials"),
        ((b"<html>", None), SinkError, "the server is not WebHDFS"),
        (("Invalid path name\n\tat org.apache", "InvalidPathException"), SinkError, "Invalid path name."),
    ],
)
def test_hdfs_errors_are_translated_with_the_fix(
    answer: tuple[Any, str | None], kind: type[EpochalError], part: str
) -> None:
    with pytest.raises(EpochalError) as caught, translated("Sink 'out'", "write"):
        raise HdfsError(answer[0], exception=answer[1])
    assert type(caught.value) is kind
    assert part in caught.value.message
    assert "org.apache" not in caught.value.message


def test_kerberos_without_its_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "requests_kerberos", None)
    monkeypatch.delitem(__import__("sys").modules, "hdfs.ext.kerberos", raising=False)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'epochal\[kerberos\]'"):
        _ = WebHdfs(address("hdfs.sink", URL, kerberos=True)).client


def lines(text: bytes, size: int, **options: Any) -> list[str]:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return [line for array in LineFormat(**options).lines(pieces) for line in array.to_pylist()]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_do_not_depend_on_the_read_size(size: int) -> None:
    assert lines("é1\r\n\n  \nzwei\n漢3".encode(), size) == ["é1", "zwei", "漢3"]
    assert lines(b"\n# c\nhead\na\n#b\n", size, comment="#", header=True) == ["a"]
    assert lines(b"a||b|c||", size, separator="||") == ["a", "b|c"]
    assert lines("é|b".encode("utf-16"), size, separator="|", encoding="utf-16") == ["é", "b"]
    assert lines(b"a\rb", size) == ["a", "b"]
    assert lines(b"bad \xff\nok", size) == ["bad �", "ok"]
    assert lines(b"", size) == []


def test_a_byte_order_mark_is_not_part_of_the_first_line() -> None:
    assert lines(b"\xef\xbb\xbfa\nb", 100) == ["a", "b"]
