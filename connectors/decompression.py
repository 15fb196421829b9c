"""Decompression of text files by the extension of their names, as in Spark."""

from __future__ import annotations

import bz2
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa

from epochal.errors import SourceError

COMPRESSIONS: Final = frozenset({"gz", "bz2", "deflate", "zst", "lz4", "snappy"})
"""Extensions of compressed files. Spark decompresses all of them, :func:`decompressed` all but the last two."""
_MOST_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of a decompressed piece, so that a small file with long runs does not fill the memory."""
ERRORS: Final = (EOFError, zlib.error, OSError, pa.ArrowException)
"""Errors of damaged files."""


def compression_of(path: str) -> str | None:
    """The extension from which Spark determines the compression of a text file; ``None``: not compressed."""
    _, dot, suffix = path.rpartition("/")[2].rpartition(".")
    return suffix if dot and suffix in COMPRESSIONS else None


def decompressed(path: str, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The content of a file whose bytes are ``pieces``. The file may consist of several concatenated members, as
    written by programs that append. Raises ``SourceError`` for an unsupported compression, and :data:`ERRORS`."""
    suffix = compression_of(path)
    if suffix is None:
        return pieces
    if suffix in ("lz4", "snappy"):
        raise SourceError(
            f"{path}: a file with the extension .{suffix} cannot be decompressed. Compress it as .gz, .bz2, .deflate "
            "or .zst, under a new name."
        )
    if suffix == "zst":
        return _zstandard(pieces)
    return _members(pieces, bz2.BZ2Decompressor if suffix == "bz2" else _Inflater)


class _Inflater:
    """gzip or zlib, with the interface of ``bz2.BZ2Decompressor``."""

    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inflater.decompress(self._inflater.unconsumed_tail + data, max_length)

    @property
    def needs_input(self) -> bool:
        return not self._inflater.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._inflater.eof

    @property
    def unused_data(self) -> bytes:
        return self._inflater.unused_data


def _members(pieces: Iterator[bytes], make: Callable[[], Any]) -> Iterator[bytes]:
    current = make()
    begun = False
    for piece in pieces:
        rest = piece
        while rest or not (current.eof or current.needs_input):
            if current.eof:
                current = make()
            begun = True
            yield current.decompress(rest, _MOST_BYTES)
            rest = current.unused_data if current.eof else b""
    if begun and not current.eof:
        raise EOFError("the compressed file ends too early")


def _zstandard(pieces: Iterator[bytes]) -> Iterator[bytes]:
    with pa.input_stream(io.BufferedReader(_Joined(pieces)), compression="zstd") as stream:
        while piece := stream.read(_MOST_BYTES):
            yield piece


class _Joined(io.RawIOBase):
    """The pieces as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        taken = min(len(self._rest), len(buffer))
        buffer[:taken], self._rest = self._rest[:taken], self._rest[taken:]
        return taken
