"""Views of a program's dataflow: a tree with source lines, and a JSON document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.text import Text
from rich.tree import Tree

from epochal.programs.dataflow import Dataflow, Edge
from epochal.programs.layout import edge_text, lines


def dataflow_tree(dataflow: Dataflow, file: Path) -> Tree:
    """Tree of state elements and entries; below each entry its task elements in order with their incoming edges."""
    source = file.read_text().splitlines() if file.suffix == ".py" else []
    shown = [source[line - 1] for task in dataflow.tasks for line in task.lines] if source else []
    indent = min((len(line) - len(line.lstrip()) for line in shown), default=0)
    root = Tree(Text(dataflow.name, style="bold"), guide_style="dim")
    for element in dataflow.elements.values():
        by = f" by {element.by}" if element.by else ""
        root.add(
            Text.assemble(
                ("state ", "yellow"),
                (element.name, "bold yellow"),
                f"  {element.distribution.value} {element.shown_kind}{by}  ",
                (str(element.model), "dim"),
            )
        )
    names = {task.number: task.name for task in dataflow.tasks}
    for entry in dataflow.entries.values():
        parameters = ", ".join(f"{name}: {type.python}" for name, type in entry.parameter_types.items())
        answer = (f" -> {entry.answer.python}", "dim")
        branch = root.add(Text.assemble((entry.name, "bold green"), f"({parameters})", answer))
        for stage in dataflow.stages:
            for number in stage.tasks:
                task = dataflow.tasks[number]
                if task.entry == entry.name:
                    below = branch.add(Text.assemble((task.name, "bold cyan"), (f"  {lines(task)}", "dim")))
                    for edge in dataflow.into(number):
                        below.add(_edge_line(edge, entry.name, names))
                    for line in task.lines if source else ():
                        below.add(Text.assemble((f"{line:>4} │ ", "dim"), source[line - 1][indent:].rstrip()))
    return root


def _edge_line(edge: Edge, entry: str, names: dict[int, str]) -> Text:
    head, *variables = edge_text(edge)
    origin = "calls" if edge.source is None else names[edge.source]
    text = Text.assemble(("← ", "magenta"), f"{origin}  ", (head, "magenta"))
    return text.append(f"  {variables[0]}" if variables else "", "dim")


def dataflow_document(dataflow: Dataflow) -> dict[str, Any]:
    """JSON document of a dataflow. Edges refer to task elements by number."""
    return {
        "name": dataflow.name,
        "elements": [
            {
                "name": each.name,
                "kind": each.shown_kind,
                "distribution": each.distribution.value,
                "by": each.by,
                "key": {column.name: column.spark for column in each.model.key},
                "sub_key": {column.name: column.spark for column in each.model.sub_key},
                "value": {column.name: column.spark for column in each.model.value},
            }
            for each in dataflow.elements.values()
        ],
        "entries": [
            {
                "name": each.name,
                "parameters": {name: type.spark for name, type in each.parameter_types.items()},
                "answer": each.answer.spark,
                "target": each.target,
            }
            for each in dataflow.entries.values()
        ],
        "tasks": [
            {
                "number": each.number,
                "id": each.id,
                "entry": each.entry,
                "name": each.name,
                "element": each.element,
                "access": None if each.access is None else each.access.value,
                "lines": list(each.lines),
            }
            for each in dataflow.tasks
        ],
        "edges": [
            {
                "source": each.source,
                "target": each.target,
                "dispatch": each.dispatch.value,
                "key": each.key,
                "fields": {field.name: field.spark for field in each.fields},
                "fan_out": each.fan_out,
            }
            for each in dataflow.edges
        ],
        "stages": [{"element": each.element, "tasks": list(each.tasks)} for each in dataflow.stages],
    }
