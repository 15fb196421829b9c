"""Report idiom in prose: docstrings, comments, messages, test names, documentation.

Each pattern comes with the plain wording that replaces it. ``tools/phrases_allowed.toml`` lists the passages that are
right as they are, each with its reason. ``tools/phrases_pending.txt`` lists the paths that are not covered yet.
Run with ``python -m tools.phrases [--count] [PATH ...]``.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALLOWED = Path(__file__).with_name("phrases_allowed.toml")
PENDING = Path(__file__).with_name("phrases_pending.txt")
PATTERNS = {
    r"\bso (?:long|many|often|few)\b": "name the quantity: maximum number of, timeout for, as long as",
    r"\b(?:who|whom|whoever|nobody|somebody|someone|everybody|anybody)\b": "name the process, the caller, the user",
    r"\b(?:what|which) there (?:is|are)\b|\bthat are there\b|\bbe gone\b|\b(?:is|are|was|were) gone\b": "existing, "
    "missing, deleted, has terminated",
    r"\b(?:is|are|was|were) told\b|\bhears?\b|\bhas said\b": "notifies, receives, reports",
    r"\b(?:knows|wants)\b": "stores, has, requires, accepts",
    r"\b(?:of|from) before\b|\bones? before\b|\bof after\b": "previous, older, earlier",
    r"\banew\b": "again",
    r"\bby itself\b|\bby themselves\b": "automatically; alone; on its own",
    r"\bby turns\b": "alternately",
    r"\bat once\b": "immediately; at the same time; in one call",
    r"\bin vain\b": "without effect",
    r"\bit is looked\b|\bis looked whether\b": "checks whether",
    r"\bever so\b|\bas (?:it|they) likes?\b|\bto be had\b": "say it plainly",
}
FRAGMENT = re.compile(r"(?:Of|Who|Whoever|Whose|Whatever|What|Whether|By itself)\b(?! is new\b)")
"""Docstrings that begin so are relative clauses or genitives: a noun phrase or an imperative replaces them."""
FRAGMENT_ADVICE = "begin with a noun phrase or an imperative"
MATCHERS = [(re.compile(pattern, re.IGNORECASE), advice) for pattern, advice in PATTERNS.items()]
TEXTS = (".py", ".md", ".toml", ".yaml", ".tpl", ".txt", "Makefile", "Dockerfile")


@dataclass(frozen=True)
class Passage:
    """One piece of prose of a file, with the line on which it begins."""

    path: str
    line: int
    text: str
    docstring: bool = False


@dataclass(frozen=True)
class Hit:
    passage: Passage
    phrase: str
    advice: str

    def __str__(self) -> str:
        return f"{self.passage.path}:{self.passage.line}: {self.phrase!r}: {self.advice}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", help="check these, also where they are pending")
    parser.add_argument("--count", action="store_true", help="print the number of hits of each folder only")
    options = parser.parse_args()
    hits = list(found(tracked(options.paths)))
    if options.count:
        folders = Counter("/".join(hit.passage.path.split("/")[:2]) for hit in hits)
        print("\n".join(f"{count:6} {folder}" for folder, count in sorted(folders.items())))
        return 0
    print("\n".join(map(str, hits)) or "No idiom found.")
    return 1 if hits else 0


def tracked(chosen: list[str]) -> list[str]:
    """The chosen text files of the repository, or all that are not pending."""
    listed = subprocess.check_output(["git", "ls-files", *chosen], cwd=ROOT, text=True).splitlines()
    pending = () if chosen else pending_paths()
    texts = (path for path in listed if path.endswith(TEXTS) and not path.endswith("phrases.py"))
    return [path for path in texts if (ROOT / path).is_file() and not path.startswith(pending)]


def pending_paths() -> tuple[str, ...]:
    lines = PENDING.read_text().splitlines() if PENDING.exists() else []
    return tuple(line for line in lines if line and not line.startswith("#"))


def found(paths: list[str]) -> Iterator[Hit]:
    allowed = tomllib.loads(ALLOWED.read_text()).get("allowed", [])
    for path in paths:
        here = [entry for entry in allowed if path.startswith(entry["path"])]
        for passage in passages(path):
            for hit in hits_of(passage):
                if not any(re.fullmatch(entry["phrase"], hit.phrase, re.IGNORECASE) for entry in here):
                    yield hit


def hits_of(passage: Passage) -> Iterator[Hit]:
    for matcher, advice in MATCHERS:
        for match in matcher.finditer(passage.text):
            yield Hit(passage, match.group().lower(), advice)
    if passage.docstring and (match := FRAGMENT.match(passage.text.strip())):
        yield Hit(passage, match.group(), FRAGMENT_ADVICE)


def passages(path: str) -> Iterator[Passage]:
    text = (ROOT / path).read_text()
    if path.endswith(".py"):
        yield from of_python(path, text)
    elif path.endswith(".md"):
        yield from of_markdown(path, text)
    else:
        for number, line in enumerate(text.splitlines(), 1):
            if "#" in line:
                yield Passage(path, number, line.partition("#")[2])


def of_python(path: str, text: str) -> Iterator[Passage]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Passage(path, token.start[0], token.string.lstrip("# "))
    tree = ast.parse(text)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") > 1:
            yield Passage(path, node.lineno, node.value, docstring=id(node) in docstrings)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield Passage(path, node.lineno, node.name.replace("_", " "))


def of_markdown(path: str, text: str) -> Iterator[Passage]:
    """Paragraph by paragraph, without code blocks."""
    code, lines, first = False, list[str](), 1
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            code = not code
        if code or not line.strip() or line.lstrip().startswith("```"):
            if lines:
                yield Passage(path, first, " ".join(lines))
            lines = []
        else:
            first = first if lines else number
            lines.append(re.sub(r"`[^`]*`", "``", line.strip()))


if __name__ == "__main__":
    sys.exit(main())
