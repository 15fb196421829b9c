"""The sources of settings for pydantic-settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from epochal.cli.settings import Source, known_settings
from epochal.service.domain.settings import Settings


class _NamedValues(PydanticBaseSettingsSource):
    """Values by name of the setting."""

    def __init__(self, settings: type[BaseSettings], values: Mapping[str, Any]) -> None:
        super().__init__(settings)
        self._values = values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self().get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        nested: dict[str, Any] = {}
        for name, value in self._values.items():
            *sections, field = known_settings()[name].path
            table = nested
            for section in sections:
                table = table.setdefault(section, {})
            table[field] = value
        return nested


def validated(values: Mapping[Source, Mapping[str, Any]]) -> Settings:
    """Merge the sources by precedence. Raises ``ValidationError``."""

    class Merged(Settings, BaseSettings):
        model_config = SettingsConfigDict(frozen=True, extra="forbid")

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: PydanticBaseSettingsSource, **__: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            by_precedence = [source for source in reversed(Source) if source in values]
            return tuple(_NamedValues(settings_cls, values[source]) for source in by_precedence)

    merged = Merged()
    return Settings(**{name: getattr(merged, name) for name in merged.model_fields_set})
