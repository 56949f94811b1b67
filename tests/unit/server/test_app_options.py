"""Each option of a part of the server is a setting, so that an operator can reach it."""

from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

import pytest

from server_stub import part_options
from server_stub.config import SETTINGS, ServerSettings
from server_stub.core.allowed_urls import AllowedUrls

CHANGED: dict[Any, Callable[[Any], Any]] = {
    int: lambda value: value + 7,
    bool: lambda value: not value,
    timedelta: lambda value: value * 3,
    str: lambda value: value,
}
OTHERS = {
    name: CHANGED[setting.value_type](setting.default)
    for name, setting in SETTINGS.items()
    if setting.value_type in CHANGED
} | {
    "durability": "NORMAL",
    "log_level": "DEBUG",
    "worker_headers": {"X-A": "b"},
    "allowed_worker_urls": AllowedUrls(("http://a",)),
}


INNER = {"notify", "page_size"}
"""What only tests vary: the first is an argument of `Server.open`, the second how much one read of a scan takes."""


@pytest.mark.parametrize(
    "options",
    [
        part_options.dispatch_options,
        part_options.operations_options,
        part_options.sqlite_options,
        part_options.server_options,
        part_options.keeper_options,
        part_options.poller_options,
        lambda settings: part_options.delivery_options(settings, notify=True),
        part_options.api_limits,
    ],
    ids=["dispatch", "operations", "sqlite", "server-store", "keeper", "poller", "delivery", "api"],
)
def test_every_option_changes_with_the_settings(options: Any) -> None:
    usual = asdict(options(ServerSettings()))
    other = asdict(options(ServerSettings(**OTHERS)))

    assert {name for name in usual if usual[name] == other[name]} <= INNER
