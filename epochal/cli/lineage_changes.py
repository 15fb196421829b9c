"""What the lineage says of a snapshot's changes: one phrase for each, then who did it and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from epochal.cli import words
from epochal.client.models import LineageChange, LineageLabel, LineageNode
from epochal.standing_queries.command_results import CARRIED_OUT, REFUSED
from epochal.wire.projects import local_name, project_of


def phrases(node: LineageNode, before: LineageNode | None, label: LineageLabel | None) -> list[Text]:
    """``before`` is the parent; ``None`` where it is not known."""
    texts: list[Text] = [_phrase(change, node, before) for change in node.changes]
    if label is not None and (label.by or label.message):
        by = f"by {label.by}" if label.by else ""
        texts.append(Text.assemble(by, ": " if by and label.message else "", (label.message or "", "italic")))
    return texts


def _phrase(change: LineageChange, node: LineageNode, before: LineageNode | None) -> Text:
    detail = change.detail
    match change.kind:
        case "transaction":
            how = {"abort": "dropped", "commit": "committed by hand"}.get(detail["action"], change.kind)
            return Text(f"sink {detail['sink']}: {how} by {detail['by']}", style="red")
        case "rescale" if "parallelism" in detail:
            emptied = [f"{table} begins empty" for table in detail.get("emptied", ())]
            return _assembled("rescale", ", ".join([" → ".join(map(str, detail["parallelism"])), *emptied]))
        case "upgrade" if "artifact" in detail:
            codes = " → ".join(words.code(code) for code in detail["artifact"])
            watermarks = _watermarks(detail.get("event_times") or {})
            return _assembled("upgrade", ", ".join([codes, *watermarks, *_accepted(detail)]))
        case "parameters" | "sinks" | "configuration" if isinstance(detail.get("changed"), Mapping):
            return _assembled(change.kind, ", ".join([_changed(detail["changed"]), *_accepted(detail)]))
        case "queries":
            by_kind = {what: ids for what, ids in detail.items() if what != CARRIED_OUT}
            return _assembled(
                "queries", "; ".join(f"{_said(what)} {', '.join(map(str, ids))}" for what, ids in by_kind.items())
            )
        case kind:
            about = [_parameters(before, node)]
            if before is None or before.artifact != node.artifact:
                about.insert(0, words.code(node.artifact))
            return _assembled(_began(kind, detail, node, before), " ".join(filter(None, about)))


def _assembled(said: str, about: str) -> Text:
    return Text.assemble(said, (f" {about}" if about else "", "dim"))


def _began(kind: str, detail: Mapping[str, Any], node: LineageNode, before: LineageNode | None) -> str:
    """Of an import whose it was where it came from, which may be another project."""
    origin = detail.get("origin")
    if kind == "import" and isinstance(origin, Mapping) and {"application", "epoch"} <= origin.keys():
        source, here = str(origin["application"]), project_of(node.branch)
        named = words.imported_from(local_name(source), origin["epoch"], project_of(source), here)
        return f"imported from {named}"
    return kind if before is None or before.branch == node.branch else f"{kind} of {before.application}"


def _said(what: str) -> str:
    """Others are said of queries."""
    return "refused command" if what == REFUSED else what


def _changed(changed: Mapping[str, Any]) -> str:
    """``late_minutes 15 → 30, out unset → /data``."""
    pairs = {
        name: pair if isinstance(pair, list) and len(pair) == 2 else [None, pair] for name, pair in changed.items()
    }
    return ", ".join(f"{name} {_value(was)} → {_value(now)}" for name, (was, now) in pairs.items())


def _watermarks(changed: Mapping[str, Any]) -> Iterator[str]:
    """``watermark ts: delay 10 seconds → 5 seconds``, ``watermark ts removed``."""
    for name, (was, now) in changed.items():
        if was is None or now is None:
            yield f"watermark {name} {'added' if was is None else 'removed'}"
        else:
            different = {key: [was.get(key), now.get(key)] for key in {**was, **now} if was.get(key) != now.get(key)}
            yield f"watermark {name}: {_changed(different)}"


def _accepted(detail: Mapping[str, Any]) -> Iterator[str]:
    """``accepted totals.lo (argument v → w)``, ``accepted totals.mean (counts rows since epoch 6)``."""
    for each in detail.get("accepted") or ():
        if each.get("what") == "partial":
            yield f"accepted {each['name']} (counts rows since epoch {each['since']})"
        else:
            yield f"accepted {each['name']} ({each['what']} {each['before']} → {each['after']})"


def _value(value: Any) -> str:
    return "unset" if value is None else str(value)


def _parameters(before: LineageNode | None, node: LineageNode) -> str:
    """The parameters at the start; later, what is different: ``late_minutes 15 → 30``."""
    now = node.parameters or {}
    if before is None:
        return words.values(now)
    then = before.parameters or {}
    names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
    return ", ".join(f"{name} {then.get(name, 'unset')} → {now.get(name, 'unset')}" for name in names)
