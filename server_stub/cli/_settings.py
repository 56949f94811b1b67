"""Settings as options of a command."""

import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

import click

from server_stub.config import SETTINGS, LoadedSettings, Setting, SettingError, load_settings
from server_stub.core.allowed_urls import AllowedUrls
from server_stub.core.cluster import Role
from server_stub.core.namespaces import Namespaces

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


def setting_options(*names: str) -> Callable[[CommandT], CommandT]:
    """Give a command the flags of these settings; without names, of all."""

    def decorate(command: CommandT) -> CommandT:
        for name in reversed(names or tuple(SETTINGS)):
            command = _option(SETTINGS[name])(command)
        return command

    return decorate


def load(arguments: Mapping[str, str | None]) -> LoadedSettings:
    """Put the settings together from flags, environment and defaults.

    Raises:
        click.UsageError: One of them is not right.
    """
    given = {name: text for name, text in arguments.items() if text is not None}
    try:
        return load_settings(given, os.environ)
    except SettingError as error:
        raise click.UsageError(str(error)) from error


def _option(setting: Setting) -> Callable[[CommandT], CommandT]:
    shown = setting.show(setting.default)
    return click.option(
        setting.flag,
        setting.name,
        metavar=_metavar(setting),
        help=f"{setting.purpose}  [env var: {setting.variable}; default: {shown}]",
    )


def _metavar(setting: Setting) -> str:
    kind = setting.value_type
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return "|".join(kind)
    if kind is int:
        return "SIZE" if setting.name.endswith("_bytes") else "NUMBER"
    return _METAVARS.get(kind, "JSON")


_METAVARS: Mapping[Any, str] = {
    bool: "true|false",
    timedelta: "DURATION",
    str: "TEXT",
    frozenset[Role]: "ROLES",
    AllowedUrls: "URLS",
    Namespaces: "NAMES",
}
