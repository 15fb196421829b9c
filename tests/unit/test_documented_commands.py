"""The parser accepts every ``epochal`` command line in the documentation and in messages."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from epochal.cli.main import app
from tests.service.end_to_end.blocks import ROOT

ROOT_COMMAND: Any = typer.main.get_command(app)
FOLDERS = ("docs", "examples", "helm", "benchmarks", "deploy")
CODE = ("epochal", "service", "backends", "connectors", "migrations", "helm", "deploy")
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(epochal [^`]+)`")
CONTINUED_STRING = re.compile(r'"\s*\n\s*f?"')
END = re.compile(r"\s+#|\s+[|&>]|\s+\.\.(?:\s|$)")
"""The end of a command: a comment, a pipe, a redirection, another command or an ellipsis."""


def pages() -> list[Path]:
    found = [page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md")]
    return sorted([*found, *ROOT.glob("*.md")])


def sources() -> Iterator[Path]:
    for folder in CODE:
        for path in (ROOT / folder).rglob("*"):  # rglob does not follow links to other folders of the list
            if path.suffix in (".py", ".yaml", ".tpl", ".txt") and not path.parent.is_symlink():
                yield path


def command_blocks(text: str) -> Iterator[str]:
    """Complete command lines, from code blocks."""
    for language, block in FENCE.findall(text):
        if language in ("python", "yaml", "json"):
            continue
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            line = re.sub(r"^(?:[A-Z_]+=\S+ )+", "", line.strip().removeprefix("$ "))
            if line.startswith("epochal "):
                yield END.split(line)[0]


def mentions(text: str) -> Iterator[str]:
    """Commands in running text, which may omit arguments."""
    for found in INLINE.findall(text):
        yield END.split(" ".join(found.split()))[0]


def problem(line: str, whole: bool) -> str | None:
    """Reason for which the parser refuses the line. ``whole``: the line omits no argument."""
    words = [word.rstrip(",") for word in shlex.split(line)[1:]]
    command, path = ROOT_COMMAND, ["epochal"]
    context = command.context_class(command, info_name="epochal")
    while hasattr(command, "commands"):
        while words and words[0].startswith("-"):
            if words[0] == "--help":
                return None
            option = next((known for known in command.params if words[0] in known.opts), None)
            if option is None:
                return f"{' '.join(path)} has no option {words[0]}"
            words = words[1 if option.is_flag else 2 :]
        if not words:
            return f"{' '.join(path)} needs a command" if whole else None
        following = command.get_command(context, words[0])
        if following is None:
            return f"{' '.join(path)} has no command {words[0]}"
        path.append(words.pop(0))
        command = following
    if whole:
        try:
            command.make_context(path[-1], words, parent=context)
        except Exception as error:  # noqa: BLE001 the classes are those of a copy of Click within Typer
            return f"{type(error).__name__}: {error}"
        return None
    options = {name for known in command.params for name in (*known.opts, *known.secondary_opts)} | {"--help"}
    given = [word.partition("=")[0] for word in words[: words.index("--") if "--" in words else None]]
    unknown = [word for word in given if re.match(r"--?[a-zA-Z]", word) and word not in options]
    return f"{' '.join(path)} has no option {unknown[0]}" if unknown else None


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in pages()])
def test_commands_of_a_page_are_accepted(page: str) -> None:
    text = (ROOT / page).read_text()
    found = {line: problem(line, whole=True) for line in command_blocks(text)}
    found |= {line: problem(line, whole=False) for line in mentions(FENCE.sub("", text))}
    assert {line: why for line, why in found.items() if why is not None} == {}


def test_commands_that_messages_name_are_accepted() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {line}": problem(line, whole=False)
        for path in sources()
        for line in mentions(CONTINUED_STRING.sub("", path.read_text()))
    }
    assert len(found) > 60
    assert {line: why for line, why in found.items() if why is not None} == {}


def commands(command: Any = ROOT_COMMAND) -> Iterator[Any]:
    yield command
    for below in getattr(command, "commands", {}).values():
        yield from commands(below)


def test_defaults_in_help_texts_are_escaped() -> None:
    """Rich omits text in brackets unless it is escaped."""
    texts = [known.help for command in commands() for known in command.params if "[default:" in (known.help or "")]
    assert len(texts) > 20
    assert [text for text in texts if r"\[default:" not in text] == []


@pytest.mark.parametrize(
    ("line", "whole", "why"),
    [
        ("epochal storage collect", False, "has no command storage"),
        ("epochal store collect", False, "epochal store has no command collect"),
        ("epochal backup burn", False, "epochal backup has no command burn"),
        ("epochal get APP --colour", False, "epochal get has no option --colour"),
        ("epochal get orders", True, "MissingParameter"),
        ("epochal fork orders trial extra", True, "unexpected extra argument"),
        ("epochal get orders spent 42 --epoch seven", True, "BadParameter"),
        ("epochal --projects ads ps", True, "epochal has no option --projects"),
    ],
)
def test_invalid_commands_are_reported(line: str, whole: bool, why: str) -> None:
    assert why in (problem(line, whole) or "")
