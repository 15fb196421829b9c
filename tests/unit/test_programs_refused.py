"""Refusals of programs: each rule's example at its line, and the list in docs/reference/programs.md."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from epochal.programs import ProgramRefused, translate
from epochal.programs.rules import RULES, page
from epochal.programs.translation import programs_in
from tests.kit.written import OF_PROGRAMS

HEAD = "from __future__ import annotations\n\nfrom epochal.programs import *\n\n"
Load = Callable[[str], ModuleType]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Import a module with this text after the imports of HEAD."""

    def load(text: str) -> ModuleType:
        path = tmp_path / "program.py"
        path.write_text(HEAD + text.strip() + "\n")
        spec = importlib.util.spec_from_file_location(f"refused_{tmp_path.name}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    return load


def refusal(module: ModuleType) -> ProgramRefused:
    (program,) = programs_in(module)
    with pytest.raises(ProgramRefused) as refused:
        translate(program)
    return refused.value


def line_of(module: ModuleType) -> int:
    """Number of the line that ends with ``#!``."""
    assert module.__file__ is not None
    lines = Path(module.__file__).read_text().splitlines()
    (line,) = [number for number, text in enumerate(lines, 1) if text.endswith("#!")]
    return line


@pytest.mark.parametrize("slug", [slug for slug, rule in RULES.items() if rule.example])
@pytest.mark.claim("SDG, 4.2, rule 2")
def test_each_example_is_refused_at_its_line_by_its_rule(slug: str, load: Load) -> None:
    module = load(RULES[slug].example.replace("\nclass ", "\n@program\nclass "))
    refused = refusal(module)
    assert refused.rule is not None and refused.place is not None
    assert (refused.rule.slug, refused.place.line) == (slug, line_of(module))
    assert f"line {refused.place.line}: " in refused.message
    assert RULES[slug].why in refused.message and RULES[slug].fix in refused.message


def test_every_rule_but_one_has_an_example() -> None:
    assert [slug for slug, rule in RULES.items() if not rule.example] == ["no-source"]


def test_a_class_without_a_file_is_refused() -> None:
    names: dict[str, type] = {}
    exec(HEAD + "@program\nclass Lost:\n    @entry\n    def call(self) -> None:\n        pass\n", names)
    with pytest.raises(ProgramRefused, match="has no source"):
        translate(names["Lost"])


def test_the_documented_refusals_are_current() -> None:
    assert OF_PROGRAMS.read() == page(), "python -m tests.kit.written"


UNLISTED = {
    "a generator": ("unsupported-syntax", "        yield self.counts.count(word)  #!"),
    "a function in an entry": ("unsupported-syntax", "        def inner() -> None: ...  #!"),
    "an import": ("unsupported-syntax", "        import time  #!"),
    "printing": ("unknown-call", "        print(word)  #!"),
    "a file": ("unknown-call", "        open(word)  #!"),
    "a hash, which differs between processes": ("unknown-call", "        n = hash(word)  #!"),
    "another entry": ("unknown-call", "        self.seen(word)  #!"),
    "a private method of state": ("unknown-access", "        self.counts._put(word, 1)  #!"),
    "state handed to a function": ("state-as-value", "        n = len(self.counts)  #!"),
    "the program itself": ("state-as-value", "        n = str(self)  #!"),
    "an attribute of a value": ("unsupported-syntax", "        n = word.__class__  #!"),
    "Global without an access": ("state-as-value", "        n = Global(self.counts)  #!"),
    "Collection of an expression": ("collection", "        n = Collection(1 + 1)  #!"),
    "a builtin with another meaning": ("unsupported-syntax", "        len = 3  #!"),
    "except of everything": ("unsupported-syntax", "        try:  #!\n            n = int(word)\n        except: ..."),
    "with": ("unsupported-syntax", "        with word: ...  #!"),
    "del": ("unsupported-syntax", "        del word  #!"),
    "a set display": ("set", "        n = {word}  #!"),
    "state in a lambda": ("state-in-inner-scope", "        n = lambda: self.counts.count(word)  #!"),
}


@pytest.mark.parametrize("construct", UNLISTED)
def test_constructs_without_support_are_refused_at_their_line(construct: str, load: Load) -> None:
    slug, body = UNLISTED[construct]
    head = "@program\nclass Counts:\n    counts: Partitioned[Counter[str]]\n\n    @entry\n    def seen(self, word: str)"
    module = load(f"{head} -> None:\n{body}\n")
    refused = refusal(module)
    assert refused.rule is not None and refused.place is not None
    assert (refused.rule.slug, refused.place.line) == (slug, line_of(module))


def test_a_transfer_without_checks_is_accepted(load: Load) -> None:
    """This is the fix that the refusal ``second-visit`` suggests."""
    module = load(
        """
@program
class Bank:
    accounts: Partitioned[Map[str, int]]

    @entry
    def transfer(self, source: str, target: str, amount: int) -> None:
        for account, change in ((source, -amount), (target, amount)):
            self.accounts.add(account, change)
"""
    )
    graph = translate(module.Bank)
    assert [(edge.dispatch.value, edge.fan_out) for edge in graph.edges] == [("one-to-any", False), ("by key", True)]
