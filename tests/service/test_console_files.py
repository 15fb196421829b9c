"""The static files of the console."""

from __future__ import annotations

import gzip
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from epochal.service.api.console import accepts_gzip
from epochal.service.domain.settings import CONSOLE, Settings

if TYPE_CHECKING:
    from tests.service.conftest import Plane

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
PAGE, SCRIPT = b"<!doctype html><title>console</title>", b"export {};"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    (folder / "assets").mkdir(parents=True)
    (folder / "index.html").write_bytes(PAGE)
    (folder / "favicon.svg").write_text("<svg/>")
    (folder / "assets" / "app-ABCD2345.js").write_bytes(SCRIPT)
    (folder / "assets" / "app-ABCD2345.js.map").write_text("{}")
    (folder / "assets" / "style.css").write_text("")
    (folder / ".hidden").write_text("hidden")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "out").symlink_to(tmp_path)
    return folder


@pytest.fixture
def settings(settings: Settings, bundle: Path) -> Settings:
    return settings.model_copy(update={"console": bundle})


def test_the_page_is_revalidated_and_hashed_files_are_immutable(plane: Plane) -> None:
    with plane.as_bearer(None) as client:
        page = client.get("/console/")
        assert (page.status_code, page.content) == (200, PAGE)
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["cache-control"] == "no-cache"
        script = client.get("/console/assets/app-ABCD2345.js")
        assert (script.status_code, script.content) == (200, SCRIPT)
        assert script.headers["content-type"] == "text/javascript; charset=utf-8"
        assert script.headers["cache-control"] == "public, max-age=31536000, immutable"
        for path in ("/console/favicon.svg", "/console/assets/style.css", "/console/index.html"):
            assert client.get(path).headers["cache-control"] == "no-cache"
        assert client.get("/console/assets/app-ABCD2345.js.map").headers["cache-control"].endswith("immutable")


def test_if_none_match_is_answered_with_304(plane: Plane, bundle: Path) -> None:
    with plane.as_bearer(None) as client:
        tag = client.get("/console/").headers["etag"]
        for header in (tag, f"W/{tag}", f'"other", {tag}', "*"):
            same = client.get("/console/", headers={"If-None-Match": header})
            assert (same.status_code, same.content) == (304, b"")
            assert (same.headers["etag"], same.headers["cache-control"]) == (tag, "no-cache")
        for header in ('"other"', tag.strip('"'), tag[:-2] + '"'):
            assert client.get("/console/", headers={"If-None-Match": header}).status_code == 200
        (bundle / "index.html").write_bytes(PAGE + b"changed")
        assert client.get("/console/", headers={"If-None-Match": tag}).status_code == 200


class TestCompression:
    LONG = b"export const text = 'repeated';\n" * 100
    PATH = "/console/assets/long-ABCD2345.js"

    @pytest.fixture
    def long(self, bundle: Path) -> Path:
        file = bundle / "assets" / "long-ABCD2345.js"
        file.write_bytes(self.LONG)
        return file

    def raw(self, plane: Plane, method: str = "GET", **headers: str) -> tuple[int, httpx.Headers, bytes]:
        sent = {"Accept-Encoding": "identity"} | {name.replace("_", "-"): value for name, value in headers.items()}
        with plane.as_bearer(None) as client, client.stream(method, self.PATH, headers=sent) as answer:
            return answer.status_code, answer.headers, b"".join(answer.iter_raw())

    def test_both_forms_have_the_same_content_and_other_tags(self, plane: Plane, long: Path) -> None:
        _, plain, content = self.raw(plane)
        assert content == self.LONG and "content-encoding" not in plain
        status, headers, compressed = self.raw(plane, Accept_Encoding="br, gzip;q=0.5")
        assert (status, headers["content-encoding"]) == (200, "gzip")
        assert gzip.decompress(compressed) == self.LONG
        assert int(headers["content-length"]) == len(compressed) < len(self.LONG) / 10
        assert headers["etag"] != plain["etag"] and not headers["etag"].startswith("W/")
        for each in (plain, headers):
            assert "accept-encoding" in each["vary"].lower()
            assert each["cache-control"] == "public, max-age=31536000, immutable"
            assert each["content-type"] == "text/javascript; charset=utf-8"
        head = self.raw(plane, "HEAD", Accept_Encoding="gzip")
        assert (head[0], head[1]["content-length"], head[2]) == (200, str(len(compressed)), b"")

    def test_a_tag_is_that_of_one_form(self, plane: Plane, long: Path) -> None:
        tags = {form: self.raw(plane, Accept_Encoding=form)[1]["etag"] for form in ("gzip", "identity")}
        for form, tag in tags.items():
            status, headers, body = self.raw(plane, Accept_Encoding=form, If_None_Match=tag)
            assert (status, headers["etag"], body) == (304, tag, b"")
            assert "accept-encoding" in headers["vary"].lower()
        assert self.raw(plane, Accept_Encoding="gzip", If_None_Match=tags["identity"])[0] == 200

    @pytest.mark.parametrize("form", ["gzip", "identity"])
    def test_ranges_are_ignored(self, plane: Plane, long: Path, form: str) -> None:
        status, headers, body = self.raw(plane, Accept_Encoding=form, Range="bytes=0-9")
        assert (status, headers["accept-ranges"], len(body)) == (200, "none", int(headers["content-length"]))
        assert "content-range" not in headers

    def test_a_replaced_file_is_compressed_again(self, plane: Plane, long: Path) -> None:
        before = self.raw(plane, Accept_Encoding="gzip")
        long.write_bytes(self.LONG + b"changed")
        after = self.raw(plane, Accept_Encoding="gzip")
        assert before[1]["etag"] != after[1]["etag"]
        assert gzip.decompress(after[2]) == self.LONG + b"changed"

    def test_a_file_that_compression_does_not_shorten_is_sent_as_it_is(self, plane: Plane, long: Path) -> None:
        long.write_bytes(SCRIPT)
        _, headers, body = self.raw(plane, Accept_Encoding="gzip")
        assert "content-encoding" not in headers and body == SCRIPT
        assert "accept-encoding" in headers["vary"].lower()

    @pytest.mark.parametrize(
        ("header", "accepted"),
        [
            ("gzip", True),
            ("GZIP", True),
            ("gzip, deflate, br, zstd", True),
            ("br;q=1.0, gzip; q=0.001", True),
            ("*", True),
            ("x-gzip", True),
            ("", False),
            ("br", False),
            ("identity", False),
            ("gzip;q=0", False),
            ("gzip;q=0.000, *", False),
            ("*;q=0", False),
            ("gzip;q=x", False),
            ("notgzip", False),
        ],
    )
    def test_accept_encoding(self, header: str, accepted: bool) -> None:
        assert accepts_gzip(header) is accepted


def test_head_has_the_headers_of_get_and_no_body(plane: Plane) -> None:
    with plane.as_bearer(None) as client:
        for path in ("/console/", "/console/assets/app-ABCD2345.js", "/console/assets/none.js"):
            whole, head = client.get(path), client.head(path)
            for answer in (whole, head):
                for name in ("date", "x-request-id"):
                    answer.headers.pop(name, None)
            assert (head.status_code, head.content, head.headers) == (whole.status_code, b"", whole.headers)
            assert int(head.headers["content-length"]) == len(whole.content) > 0


def test_views_of_the_application_are_answered_with_its_page(plane: Plane) -> None:
    with plane.as_bearer(None) as client:
        for path in (
            "applications/flights",
            "applications/pricing.js",
            "a/b/c?epoch=3",
            "%2e%2e/x",
            "%ff",
            "a//b",
            "x/",
        ):
            answer = client.get(f"/console/{path}")
            assert (answer.status_code, answer.content) == (200, PAGE), path
        missing = client.get("/console/assets/app-OLD23456.js")
        assert (missing.status_code, missing.headers["content-type"]) == (404, "text/plain; charset=utf-8")
        assert missing.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    [
        "/console/../secret.txt",
        "/console/assets/../../secret.txt",
        "/console/%2e%2e/secret.txt",
        "/console/..%2fsecret.txt",
        "/console/assets/%2e%2e%2f%2e%2e%2fsecret.txt",
        "/console/..%5csecret.txt",
        "/console/%252e%252e/secret.txt",
        "/console//etc/passwd",
        "/console/%2fetc%2fpasswd",
        "/console/.hidden",
        "/console/link.txt",
        "/console/out/secret.txt",
        "/console/assets",
        "/console/index.html%00.js",
    ],
)
def test_paths_do_not_leave_the_folder(plane: Plane, path: str) -> None:
    """Sent as written: clients would normalise some of them."""
    with socket.create_connection(("127.0.0.1", plane.settings.port), timeout=20) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    status = int(answer.split(b" ", 2)[1])
    assert status == 404 or (status == 200 and answer.endswith(PAGE))
    assert b"secret" not in answer.partition(b"\r\n\r\n")[2].removesuffix(PAGE).replace(path.encode(), b"")
    assert b"root:" not in answer and b"hidden" not in answer.replace(path.encode(), b"")


def test_every_answer_has_the_policy(plane: Plane, bundle: Path) -> None:
    browser = {"Accept": "text/html,*/*;q=0.8"}
    with plane.as_bearer(None) as client:
        tag = client.get("/console/").headers["etag"]
        answers = [
            *(
                client.get(path, headers=browser)
                for path in ("/", "/console", "/console/", "/console/a", "/console/assets/x")
            ),
            client.get("/console/assets/app-ABCD2345.js"),
            client.head("/console/"),
            client.get("/console/", headers={"If-None-Match": tag}),
        ]
        (bundle / "index.html").unlink()
        answers.append(client.get("/console/"))
    assert [answer.status_code for answer in answers] == [307, 307, 200, 200, 404, 200, 200, 304, 404]
    for answer in answers:
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_browsers_are_redirected_to_the_console_if_it_is_installed(plane: Plane, bundle: Path) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    with plane.as_bearer(None) as client:
        for path in ("/", "/console"):
            answer = client.get(path, headers=browser)
            assert (answer.status_code, answer.headers["location"]) == (307, "/console/")
        for accept in ("*/*", "application/json"):
            answer = client.get("/", headers={"Accept": accept})
            assert (answer.status_code, answer.json()["type"]) == (404, "urn:epochal:problem:no-such-path")
        (bundle / "index.html").unlink()
        assert client.get("/", headers=browser).status_code == 404
        missing = client.get("/console/applications/flights", headers=browser)
        assert missing.status_code == 404 and "The console is not installed" in missing.text
        assert missing.headers["cache-control"] == "no-store"


def test_other_methods_are_refused(plane: Plane) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        answer = plane.client.request(method, "/console/index.html")
        assert (answer.status_code, answer.json()["type"]) == (405, "urn:epochal:problem:method-not-allowed")


def test_the_package_contains_a_console(serve: Callable[..., Any], tmp_path: Path) -> None:
    assert Settings(data=tmp_path).console == CONSOLE
    assert (CONSOLE / "index.html").is_file()
    text = (CONSOLE / "index.html").read_text()
    assert "<style" not in text and "style=" not in text and "<script>" not in text  # the policy refuses them
