"""Settings: one name everywhere, arguments before the environment before defaults, and clear refusals."""

import os
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from server_stub.config import (
    SETTINGS,
    Durability,
    LogLevel,
    Origin,
    ServerSettings,
    SettingError,
    load_settings,
    unknown_variables,
)
from server_stub.core.allowed_urls import ANY_URL, AllowedUrls
from server_stub.core.cluster import Role


def test_argument_beats_environment_and_environment_beats_default() -> None:
    loaded = load_settings({"port": "1"}, {"XDB_PORT": "2", "XDB_HOST": "::1"})

    assert (loaded.settings.port, loaded.origins["port"]) == (1, Origin.ARGUMENT)
    assert (loaded.settings.host, loaded.origins["host"]) == ("::1", Origin.ENVIRONMENT)
    assert (loaded.settings.durability, loaded.origins["durability"]) == (Durability.FULL, Origin.DEFAULT)


def test_nothing_given_is_the_defaults() -> None:
    assert load_settings({}, {"PATH": "/bin"}).settings == ServerSettings()


@pytest.mark.parametrize("name", SETTINGS)
def test_name_is_the_same_everywhere(name: str) -> None:
    setting = SETTINGS[name]

    assert setting.flag.removeprefix("--").replace("-", "_") == name
    assert setting.variable.removeprefix("XDB_").lower() == name
    assert setting.purpose.endswith(".")


@pytest.mark.parametrize("name", sorted(SETTINGS.keys() - {"worker_headers"}))
def test_default_can_be_given_as_it_is_shown(name: str) -> None:
    setting = SETTINGS[name]

    assert setting.parse(setting.show(setting.default)) == setting.default


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("port", "0", 0),
        ("busy_timeout", "250ms", timedelta(milliseconds=250)),
        ("busy_timeout", "1.5", timedelta(seconds=1.5)),
        ("busy_timeout", "2 m", timedelta(minutes=2)),
        ("rescan_interval", "1s", timedelta(seconds=1)),
        ("look_ahead", "1h", timedelta(hours=1)),
        ("max_value_bytes", "512KiB", 512 * 1024),
        ("max_value_bytes", "100", 100),
        ("log_level", "debug", LogLevel.DEBUG),
        ("durability", "normal", Durability.NORMAL),
        ("install_schema", "no", False),
        ("worker_headers", '{"X-Env": "prod"}', {"X-Env": "prod"}),
        ("database_url", "sqlite://", "sqlite://"),
        ("database_url", "postgresql+asyncpg://h/db", "postgresql+asyncpg://h/db"),
        ("roles", "api, SYSTEM,async", frozenset(Role)),
        ("allowed_worker_urls", "http://a:1, https://*.b.c", AllowedUrls(("http://a:1", "https://*.b.c"))),
        ("allowed_worker_urls", "*", ANY_URL),
    ],
)
def test_text_is_read(name: str, text: str, value: Any) -> None:
    assert getattr(load_settings({name: text}, {}).settings, name) == value


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("port", "http", "port: 'http' is no whole number (from --port)"),
        ("port", "65536", "is no port"),
        ("port", "-1", "is no port"),
        ("busy_timeout", "soon", "is no duration"),
        ("busy_timeout", "-1s", "is no duration"),
        ("busy_timeout", "0", "give more than 0"),
        ("max_value_bytes", "1MB", "is no size"),
        ("max_value_bytes", "0", "too small"),
        ("look_ahead", "30s", "longer than rescan_interval"),
        ("max_busy_wait", "99ms", "not be shorter than initial_busy_wait"),
        ("log_level", "loud", "none of DEBUG, INFO, WARNING, ERROR"),
        ("install_schema", "perhaps", "neither true nor false"),
        ("worker_headers", "Authorization: x", "no JSON object"),
        ("worker_headers", '{"a": 1}', "no JSON object"),
        ("worker_headers", '{"a": "x\\ny"}', "no HTTP header"),
        ("worker_headers", '{"a b": "x"}', "no HTTP header"),
        ("database_url", "oracle://u:secret@h/db", "no URL of a database that xdb knows"),
        ("database_url", "xdb.db", "write sqlite:///<path>"),
        ("database_url", "sqlite+aiosqlite:///xdb.db", "write sqlite:///<path>"),
        ("database_url", "", "write sqlite:///<path>"),
        ("database_url", "postgresql+psycopg://u:secret@h/db", "write postgresql:// instead"),
        ("database_url", "mysql+pymysql://u:secret@h/db", "write mysql:// instead"),
        ("num_shards", "0", "too small"),
        ("roles", "api,cook", "something else in it than api, async, system"),
        ("roles", "system", "nothing to do by itself"),
        ("roles", "api", "a SQLite database has one server"),
        ("lease", "5s", "at least three times heartbeat"),
        ("member_timeout", "3s", "at least twice heartbeat"),
        ("allowed_worker_urls", "", "write * to allow every URL"),
        ("allowed_worker_urls", "worker:8802", "write it like http://127.0.0.1:8802"),
        ("allowed_worker_urls", "http://u:secret@h", "has a user name or password"),
    ],
)
def test_wrong_text_is_refused_with_a_remedy(name: str, text: str, message: str) -> None:
    with pytest.raises(SettingError) as refusal:
        load_settings({name: text}, {})

    assert message in str(refusal.value)
    assert str(refusal.value).startswith(f"{name}: ")
    assert "secret" not in str(refusal.value)


def test_refusal_names_the_variable_that_the_text_came_from() -> None:
    with pytest.raises(SettingError, match="from XDB_PORT"):
        load_settings({}, {"XDB_PORT": "http"})


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("database_url", "postgresql://u:secret@h/db", "postgresql://u:***@h/db"),
        ("worker_headers", {"Authorization": "Bearer secret"}, '{"Authorization": "***"}'),
    ],
)
def test_secrets_are_not_shown(name: str, value: Any, shown: str) -> None:
    assert SETTINGS[name].show(value) == shown


def test_misspelt_variables_are_found() -> None:
    environment = {"XDB_DATBASE_URL": "x", "XDB_PORT": "1", "XDB_SERVER_URL": "x", "PATH": "x"}

    assert unknown_variables(environment, frozenset({"XDB_SERVER_URL"})) == ["XDB_DATBASE_URL"]


def test_settings_are_read_without_loading_a_framework() -> None:
    code = (
        "import sys, server_stub.config; print(*{'pydantic', 'sqlalchemy', 'starlette', 'click'} & sys.modules.keys())"
    )

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)

    assert loaded.stdout.split() == []
