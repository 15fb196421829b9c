"""What is no HTTP request at all, and so reaches no endpoint, is refused as every other request is."""

from __future__ import annotations

from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from epochal.wire.problems import BAD_REQUEST, MEDIA_TYPE, PREFIX, Problem


class HttpProtocol(HttpToolsProtocol):
    """uvicorn's, which would answer in plain text."""

    def send_400_response(self, msg: str) -> None:
        status = HTTPStatus.BAD_REQUEST
        detail = f"{msg} Send HTTP/1.1; percent-encode what is not printable in paths, queries and headers."
        problem = Problem(type=f"{PREFIX}{BAD_REQUEST}", title=status.phrase, status=status.value, detail=detail)
        body = problem.model_dump_json(exclude_none=True).encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {MEDIA_TYPE}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()
