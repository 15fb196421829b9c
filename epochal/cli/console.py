"""``console``: a link with which a browser signs in to the console, and the browser for it."""

from __future__ import annotations

import os
import sys
import webbrowser
from typing import Annotated
from urllib.parse import quote

import typer
from rich.text import Text

from epochal.cli.options import Json, Url
from epochal.cli.output import Output
from epochal.cli.session import connected
from epochal.client import Client
from epochal.errors import Conflict
from epochal.wire.projects import DEFAULT_PROJECT
from epochal.wire.sessions import LINK_SECONDS, LONGEST_LINK_SECONDS

app = typer.Typer()

_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Without one of these variables, Linux opens a browser in the terminal, or none."""


@app.command()
def console(
    application: Annotated[
        str | None, typer.Option("--application", metavar="APP", help="Open the page of this application.")
    ] = None,
    opened: Annotated[bool, typer.Option("--open", help="Open the link in the browser of this machine.")] = False,
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=1, max=LONGEST_LINK_SECONDS, help="Time in which the link can be used."),
    ] = LINK_SECONDS,
    url: Url = None,
    as_json: Json = False,
) -> None:
    """Print a link with which a browser signs in to the console once, with the rights of the token of this command."""
    with connected(url, as_json) as session:
        client, output = session.client, session.output
        if application is not None:
            client.application(application).get()
        link, ends = console_link(client, page_path(client.project, application), seconds)
        if as_json:
            output.document({"url": link, "expires_at": ends})
        if opened:
            open_or_print(output, link)
        elif not as_json:
            print_link(output, link)
            if ends is not None:
                output.note(Text(f"The link signs in once, within {seconds:g} s.", style="dim"))


def page_path(project: str, application: str | None) -> str:
    """Path of a page of the console: of an application, or of the list of applications."""
    base = "/console/" if project == DEFAULT_PROJECT else f"/console/projects/{quote(project, safe='')}/"
    return f"{base}applications" + ("" if application is None else f"/{quote(application, safe='')}")


def console_link(client: Client, path: str, seconds: float = LINK_SECONDS) -> tuple[str, str | None]:
    """A link to a page of the console, and its end. Without authentication, the page's URL, without an end."""
    try:
        created = client.sessions.create_link(path, seconds=seconds)
    except Conflict:
        return f"{client.url.rstrip('/')}{path}", None
    return created.url, created.expires_at.isoformat()


def open_or_print(output: Output, link: str) -> None:
    """Open the link in the browser; print it where no browser can be opened."""
    if _open(link):
        output.note("The console is open in the browser.")
        return
    if output.as_json:
        output.warn("No browser can be opened here.")
        return
    output.note("No browser can be opened here. Open this link, which signs in once:")
    print_link(output, link)


def print_link(output: Output, link: str) -> None:
    """Print a link on one line, also if the terminal is narrower."""
    output.results.print(Text(link), soft_wrap=True)


def _open(link: str) -> bool:
    graphical = sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in _DISPLAYS)
    try:
        return graphical and webbrowser.open(link)
    except webbrowser.Error:
        return False
