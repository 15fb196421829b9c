"""The sources of settings for pydantic-settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from epochal.service.domain.settings import Settings

Values = Mapping[tuple[str, ...], Any]


class _NamedValues(PydanticBaseSettingsSource):
    """Values by path of the field in ``Settings``."""

    def __init__(self, settings: type[BaseSettings], values: Values) -> None:
        super().__init__(settings)
        self._values = values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return self().get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        nested: dict[str, Any] = {}
        for (*sections, field), value in self._values.items():
            table = nested
            for section in sections:
                table = table.setdefault(section, {})
            table[field] = value
        return nested


def validated(by_precedence: Sequence[Values]) -> Settings:
    """Merge the values of all sources, highest precedence first. Raises ``ValidationError``."""

    class Merged(Settings, BaseSettings):
        model_config = SettingsConfigDict(frozen=True, extra="forbid")

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: PydanticBaseSettingsSource, **__: PydanticBaseSettingsSource
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return tuple(_NamedValues(settings_cls, values) for values in by_precedence)

    merged = Merged()
    return Settings(**{name: getattr(merged, name) for name in merged.model_fields_set})
