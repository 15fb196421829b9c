"""Where files are: a path, a ``file:`` URL, or the URL of another file system."""

from __future__ import annotations

import os


def local_path(location: str) -> str | None:
    """The path that ``location`` says, ``~`` expanded, relative where it is that. ``None``: another file system."""
    scheme, separator, rest = location.partition("://")
    if separator and scheme != "file":
        return None
    return os.path.expanduser(rest if separator else location)


def is_absolute(location: str) -> bool:
    """Whether ``location`` means the same in every working directory."""
    path = local_path(location)
    return path is None or os.path.isabs(path)


def absolute(location: str) -> str:
    """``location`` such that it means the same in every working directory: an absolute path, or a URL."""
    path = local_path(location)
    return location if path is None else os.path.abspath(path)
