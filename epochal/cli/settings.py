"""Settings as operators give them: in a file, as environment variables, as options; later ones take precedence."""

from __future__ import annotations

import inspect
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Optional, get_args, get_origin
from urllib.parse import parse_qs, urlsplit

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from rich.markup import escape

from epochal.declarations.names import closest
from epochal.errors import OptionError
from epochal.service.domain.setting_sections import Section, Setting
from epochal.service.domain.settings import PREFIX, Settings

CONFIG_VARIABLE = f"{PREFIX}CONFIG"
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Settings file (TOML, docs/reference/settings.md). Environment variables and options take precedence "
        "over it.  " + escape(f"[default: {CONFIG_VARIABLE}]"),
        show_default=False,
    ),
]


class Source(StrEnum):
    """In the order of precedence, lowest first."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    OPTION = "option"


@dataclass(frozen=True)
class Known:
    """One setting of the model. ``path``: path of the field in ``Settings``."""

    path: tuple[str, ...]
    field: FieldInfo
    setting: Setting

    @property
    def name(self) -> str:
        return self.setting.name or ".".join(self.path)

    @property
    def variable(self) -> str:
        return self.setting.variable or PREFIX + self.name.upper().replace(".", "_")

    @property
    def option(self) -> str | None:
        if self.setting.option is True:
            return "--" + self.name.replace(".", "-").replace("_", "-")
        return self.setting.option or None

    @property
    def parameter(self) -> str:
        """The name of a command's parameter."""
        return self.name.replace(".", "_")

    @property
    def default(self) -> str:
        if self.setting.default is not None:
            return self.setting.default
        return "" if self.field.is_required() else shown(self.field.default)

    @property
    def description(self) -> str:
        return self.field.description or ""


@cache
def known_settings() -> Mapping[str, Known]:
    """All settings of the model, by name. Only a field without a description has none."""
    return {known.name: known for known in _walk(Settings, ())}


def _walk(section: type[Section], path: tuple[str, ...]) -> Iterator[Known]:
    for name, field in section.model_fields.items():
        kind = _kind(field)
        setting = next((each for each in field.metadata if isinstance(each, Setting)), None)
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _walk(kind, (*path, name))
        elif field.description is not None:
            yield Known((*path, name), field, setting or Setting())


def _kind(field: FieldInfo) -> Any:
    """The type of a field without ``None``."""
    kinds = [each for each in get_args(field.annotation) if each is not NoneType]
    is_optional = NoneType in get_args(field.annotation)
    return kinds[0] if is_optional and len(kinds) == 1 else field.annotation


@dataclass(frozen=True)
class Loaded:
    """``sources``: by name of the setting, where its value comes from. ``values``: before validation."""

    settings: Settings
    sources: Mapping[str, Source]
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Arguments:
    """Options of a command that are settings, by name of the setting, and its settings file."""

    options: Mapping[str, Any]
    file: Path | None

    def load(self, environment: Mapping[str, str] = os.environ) -> Loaded:
        """Raises ``OptionError`` naming the setting and where its value comes from."""
        from epochal.cli.settings_sources import validated  # pydantic-settings makes the other commands slower

        _check_password(self.options.get("database_url"))
        file = self.file or (Path(environment[CONFIG_VARIABLE]) if environment.get(CONFIG_VARIABLE) else None)
        values = {
            Source.FILE: {} if file is None else read_file(file),
            Source.ENVIRONMENT: _from_environment(environment),
            Source.OPTION: dict(self.options),
        }
        sources = {name: source for source, found in values.items() for name in found}
        try:
            settings = validated([_by_path(values[source]) for source in reversed(Source) if source in values])
        except ValidationError as error:
            raise OptionError(_explained(error, sources, file)) from None
        return Loaded(settings, sources, {name: values[source][name] for name, source in sources.items()})


def _by_path(values: Mapping[str, Any]) -> dict[tuple[str, ...], Any]:
    return {known_settings()[name].path: value for name, value in values.items()}


def read_file(path: Path) -> dict[str, Any]:
    """Values by name of the setting. Raises ``OptionError`` for a file that cannot be read and for unknown names."""
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise OptionError(f"The settings file {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise OptionError(f"The settings file {path} is not valid TOML: {error}.") from None
    return dict(_flat(document, "", path))


def _flat(table: Mapping[str, Any], above: str, path: Path) -> Iterator[tuple[str, Any]]:
    settings = known_settings()
    for key, value in table.items():
        name = above + key
        if name in settings:
            yield name, value
        elif isinstance(value, dict) and any(each.startswith(f"{name}.") for each in settings):
            yield from _flat(value, f"{name}.", path)
        else:
            sections = {each.partition(".")[0] for each in settings if "." in each}
            raise OptionError(f"{path}: unknown setting {name!r}.{closest(name, {*settings, *sections})}")


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Values by name of the setting. An empty variable counts as not set."""
    found = {name: value for name, known in known_settings().items() if (value := environment.get(known.variable, ""))}
    # In a pod beside a Kubernetes service named `epochal` this variable is a service link, and no setting.
    if found.get("port", "").startswith("tcp://"):
        del found["port"]
    return found


def _check_password(database_url: str | None) -> None:
    """Raises ``OptionError`` for a password in the arguments, which every user of the machine can read."""
    parts = urlsplit(database_url or "")
    if parts.password is not None or "password" in parse_qs(parts.query):
        raise OptionError(
            "--database-url holds a password, which every user of this machine could read in the list of processes. "
            "Set EPOCHAL_DATABASE_URL instead, or keep the password in a PGPASSFILE."
        )


def _explained(error: ValidationError, sources: Mapping[str, Source], file: Path | None) -> str:
    first = error.errors()[0]
    place = tuple(each for each in first["loc"] if isinstance(each, str))
    known = next((each for each in known_settings().values() if each.path == place[: len(each.path)]), None)
    if known is None:
        return f"{'.'.join(place)}: {first['msg'].removeprefix('Value error, ')}."
    if first["type"] == "missing":
        section = [each.option or each.name for each in known_settings().values() if each.path[:-1] == known.path[:-1]]
        return f"{' and '.join(section)} belong together."
    match sources.get(known.name):
        case Source.OPTION:
            where = str(known.option)
        case Source.ENVIRONMENT:
            where = known.variable
        case _:
            where = f"{known.name} in {file}"
    return f"{where}: {first['msg'].removeprefix('Value error, ')}."


def with_settings(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of these settings, by default of all; its first parameter takes :class:`Arguments`."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        settings = [known for known in known_settings().values() if known.option and (not names or known.name in names)]

        def command(config: Path | None, **others: Any) -> None:
            options = {known.name: others.pop(known.parameter) for known in settings}
            function(Arguments({name: value for name, value in options.items() if value is not None}, config), **others)

        file = inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=ConfigFile)
        parameters = [file, *map(_parameter, settings), *own]
        keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        command.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        command.__annotations__ = {}
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        return command

    return decorate


def _parameter(known: Known) -> inspect.Parameter:
    kind: Any = _kind(known.field)
    least, most = (
        next((getattr(each, bound) for each in known.field.metadata if hasattr(each, bound)), None)
        for bound in ("ge", "le")
    )
    option = str(known.option)
    if kind is bool:
        option = f"{option}/--no-{option.removeprefix('--')}"
    elif get_origin(kind) is tuple:
        kind = str
    elif get_origin(kind) is not Literal and kind not in (int, float, str, Path):
        kind = Path  # an object that is read from a file
    default = known.default
    information = typer.Option(
        option,
        metavar=known.setting.metavar,
        min=least,
        max=most,
        help=known.description + (f"  {escape(f'[default: {default}]')}" if default and kind is not bool else ""),
        show_default=False,
    )
    annotation = Annotated[Optional[kind], information]  # noqa: UP045
    return inspect.Parameter(known.parameter, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def shown(value: Any) -> str:
    """A value as text, as it would be written in the environment."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value)
