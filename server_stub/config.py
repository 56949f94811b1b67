"""Every setting of the server, once: its name, type, default and what it is for.

A setting `database_url` is the flag `--database-url` and the variable `XDB_DATABASE_URL`. An argument beats the
environment, and the environment beats the default.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, get_args, get_type_hints

from server_stub.core.allowed_urls import ANY_URL, AllowedUrls
from server_stub.core.cluster import Role
from server_stub.core.namespaces import NO_NAMESPACES, Namespaces

KIB = 1024
MIB = 1024 * KIB
PREFIX = "XDB_"


class Durability(StrEnum):
    """When a commit waits for the disk: FULL loses nothing, NORMAL may lose the last commits at a power cut."""

    FULL = "FULL"
    NORMAL = "NORMAL"


class MismatchRule(StrEnum):
    """What is made of a request id that comes again with another request: WARN repeats its answer, REJECT says 409."""

    WARN = "WARN"
    REJECT = "REJECT"


class LogLevel(StrEnum):
    """What is logged; INFO has one line for each request and each failed attempt."""

    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


class Origin(StrEnum):
    """Where the value of a setting came from."""

    ARGUMENT = "argument"
    ENVIRONMENT = "environment"
    DEFAULT = "default"


class SettingError(ValueError):
    """A setting has a value that it cannot have. The text names the setting, where the value came from and a remedy."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        super().__init__(f"{name}: {problem}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of a server. `xdb config` prints them with their origin.

    Raises:
        SettingError: A value is out of range, or asks for what this release does not have.
    """

    database_url: Annotated[
        str, "Database: sqlite:///<path>, sqlite:// for one in memory, postgresql://... or mysql://..."
    ] = "sqlite:///xdb.db"
    host: Annotated[str, "Address to listen on."] = "127.0.0.1"
    port: Annotated[int, "Port to listen on; 0 takes a free one."] = 8801
    roles: Annotated[
        frozenset[Role], "What this server does, separated by commas: api serves clients, async calls workers."
    ] = frozenset(Role)
    log_level: Annotated[LogLevel, "What is logged; INFO has a line for each request."] = LogLevel.INFO
    shutdown_grace: Annotated[timedelta, "How long running calls may go on after a stop signal."] = timedelta(
        seconds=10
    )

    install_schema: Annotated[bool, "Create the system tables in a database that has none."] = True
    durability: Annotated[Durability, "FULL waits for the disk at each commit; NORMAL survives a crash."] = (
        Durability.FULL
    )
    busy_timeout: Annotated[timedelta, "How long to wait for a lock that the application holds."] = timedelta(seconds=5)
    foreign_keys: Annotated[
        bool, "Enforce the foreign keys of your tables, as SQLite does only when it is told to."
    ] = True
    max_connections: Annotated[
        int, "The most connections to PostgreSQL or MariaDB, besides one that keeps its shards and one that listens."
    ] = 10
    connect_timeout: Annotated[timedelta, "How long a connection to the database may take to be had."] = timedelta(
        seconds=5
    )
    lock_timeout: Annotated[timedelta, "How long a statement waits for a lock, on PostgreSQL and MariaDB."] = timedelta(
        seconds=5
    )
    statement_timeout: Annotated[timedelta, "How long a statement may take, on PostgreSQL and MariaDB."] = timedelta(
        seconds=30
    )
    max_transactions: Annotated[
        int, "The most transactions at a time on PostgreSQL and MariaDB, and one less than max_connections."
    ] = 4
    max_commit_batch: Annotated[int, "The most events in one transaction."] = 256
    commit_timeout: Annotated[
        timedelta, "How long a client's call may wait for its commit before it is answered 503."
    ] = timedelta(seconds=10)
    max_pending_events: Annotated[int, "Events that may wait for a commit; more calls of clients are answered 429."] = (
        10_000
    )

    max_value_bytes: Annotated[int, "The largest input, payload, attribute or output, as JSON."] = 1 * MIB
    max_call_bytes: Annotated[int, "The largest call of a client."] = 4 * MIB
    max_batch_bytes: Annotated[int, "The largest batch request of a client."] = 64 * MIB
    max_batch_calls: Annotated[int, "The most calls in a batch request of a client."] = 10_000
    max_json_depth: Annotated[int, "The deepest nesting of JSON in a call or an answer."] = 100
    body_timeout: Annotated[timedelta, "How long the next piece of a request may take to come."] = timedelta(seconds=30)

    max_api_timeout: Annotated[timedelta, "The longest call of a state, whatever its options say."] = timedelta(
        seconds=60
    )
    max_rpc_timeout: Annotated[timedelta, "The longest call of an RPC, whatever its caller asks."] = timedelta(
        seconds=60
    )
    max_lock_conflicts: Annotated[int, "How often a call is repeated because what it locked was changed."] = 10
    max_revise_rounds: Annotated[int, "How often a worker may ask for other data within one attempt."] = 3
    max_worker_calls: Annotated[int, "The most calls of states in flight at one worker URL."] = 1_000
    max_worker_batch_calls: Annotated[int, "The most calls in one request to a worker."] = 64
    max_worker_batch_bytes: Annotated[int, "The size of a request to a worker above which no call is added."] = 1 * MIB
    max_answer_bytes: Annotated[int, "The largest answer of a worker; reading stops there."] = 8 * MIB
    worker_headers: Annotated[Mapping[str, str], 'Headers of requests to workers, as JSON: {"Name": "value"}.'] = field(
        default_factory=dict
    )
    allowed_worker_urls: Annotated[
        AllowedUrls,
        "Where workers may be, separated by commas: URLs, each for what is below it, or * for anywhere; "
        "https://*.example.com stands for one label.",
    ] = ANY_URL

    worker_connect_timeout: Annotated[timedelta, "How long a connection to a worker may take to be made."] = timedelta(
        seconds=5
    )
    worker_restart_patience: Annotated[
        timedelta, "How long a worker that answered within a minute may be away before calls to it fail."
    ] = timedelta(seconds=2)
    batch_probe_interval: Annotated[timedelta, "How long a worker without the batch endpoint is called singly."] = (
        timedelta(minutes=1)
    )
    initial_busy_wait: Annotated[timedelta, "How long a busy worker is spared, at least; doubled each time."] = (
        timedelta(milliseconds=100)
    )
    max_busy_wait: Annotated[timedelta, "How long a busy worker is spared at most, whatever it asks for."] = timedelta(
        seconds=30
    )

    look_ahead: Annotated[timedelta, "Timers due sooner than this are kept in memory."] = timedelta(seconds=60)
    rescan_interval: Annotated[timedelta, "How often the database is searched for due work."] = timedelta(seconds=30)
    recheck_interval: Annotated[timedelta, "How often a client's wait looks at the database by itself."] = timedelta(
        seconds=10
    )

    request_ttl: Annotated[
        timedelta, "How long a request id is remembered, so that the request is carried out once; 1h to 30 days."
    ] = timedelta(hours=24)
    on_request_mismatch: Annotated[
        MismatchRule, "What a request id that asks for something else gets: WARN the first answer, REJECT a 409."
    ] = MismatchRule.WARN
    history_off: Annotated[
        Namespaces, "Namespaces whose executions start without a history, separated by commas, or * for all."
    ] = NO_NAMESPACES
    history_values: Annotated[
        Namespaces, "Namespaces whose histories have the values of your columns, too, or * for all."
    ] = NO_NAMESPACES
    max_history_events: Annotated[
        int, "With how many events the history of an execution is full; at a fifth of it a warning is logged."
    ] = 50_000
    max_history_bytes: Annotated[int, "With how much data the history of an execution is full; likewise."] = 50 * MIB
    upkeep_interval: Annotated[timedelta, "How often is looked for what is to be forgotten."] = timedelta(minutes=1)

    num_shards: Annotated[
        int, "Parts of the work that several servers share; fixed when the system tables are made, 1 on SQLite."
    ] = 16
    lease: Annotated[timedelta, "How long the work of a server that died is left alone before others take it."] = (
        timedelta(seconds=15)
    )
    heartbeat: Annotated[timedelta, "How often a server says that it lives, and looks at the others."] = timedelta(
        seconds=2
    )
    member_timeout: Annotated[timedelta, "How long a server that says nothing is taken for alive."] = timedelta(
        seconds=10
    )
    poll_fallback: Annotated[
        timedelta, "How often an idle server looks for what others have made due, should it not be told."
    ] = timedelta(seconds=1)
    notify: Annotated[bool, "Tell other servers of news by NOTIFY of PostgreSQL, besides looking now and then."] = True
    advertise_address: Annotated[str, "The address by which this server is shown to operators; empty for its own."] = ""

    def __post_init__(self) -> None:
        """Check what the types do not say."""
        _check_database_url(self.database_url)
        if not 0 <= self.port <= 65_535:
            raise SettingError("port", f"{self.port} is no port; give one from 1 to 65535, or 0 for a free one")
        for setting in SETTINGS.values():
            value = getattr(self, setting.name)
            if isinstance(value, int) and setting.name.startswith(("max_", "num_")) and value < 1:
                raise SettingError(setting.name, f"{setting.show(value)} is too small; give 1 or more")
            if isinstance(value, timedelta) and value <= timedelta(0):
                raise SettingError(setting.name, f"{setting.show(value)} is no time; give more than 0")
        if self.max_connections < 2:
            raise SettingError("max_connections", "it must be at least 2: one for a transaction, one for reads")
        if self.look_ahead <= self.rescan_interval:
            raise SettingError(
                "look_ahead", "it must be longer than rescan_interval, or what is due between two scans is late"
            )
        if not timedelta(hours=1) <= self.request_ttl <= timedelta(days=30):
            raise SettingError("request_ttl", "it must be from 1h, longer than any client repeats a call, to 720h")
        if not self.roles:
            raise SettingError("roles", f"a server does something; give some of {', '.join(Role)}")
        if self.roles == {Role.SYSTEM}:
            raise SettingError("roles", "system has nothing to do by itself yet; give api or async, or both")
        if self.database_url.startswith("sqlite") and self.roles != frozenset(Role):
            raise SettingError("roles", f"a SQLite database has one server, which does all of {','.join(Role)}")
        if self.lease < 3 * self.heartbeat:
            raise SettingError("lease", "it must be at least three times heartbeat, or a late one loses everything")
        if self.member_timeout < 2 * self.heartbeat:
            raise SettingError(
                "member_timeout", "it must be at least twice heartbeat, or a late one is taken for death"
            )
        if self.max_busy_wait < self.initial_busy_wait:
            raise SettingError("max_busy_wait", "it must not be shorter than initial_busy_wait")
        for name, value in self.worker_headers.items():
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
                raise SettingError("worker_headers", f"{name!r} and its value are no HTTP header")


_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")
_DATABASE_URL = re.compile(r"(?:sqlite|(postgresql|postgres|mysql|mariadb)(?:\+(\w+))?)://", re.IGNORECASE)
_DATABASE_DRIVERS = (None, "asyncpg", "asyncmy")


def _check_database_url(url: str) -> None:
    match = _DATABASE_URL.match(url)
    if match is None:
        raise SettingError(
            "database_url",
            f"{_without_password(url)!r} is no URL of a database that xdb knows; write sqlite:///<path>, "
            "postgresql://<user>@<host>/<database> or mysql://<user>@<host>/<database>",
        )
    scheme, driver = match.groups()
    if driver not in _DATABASE_DRIVERS:
        raise SettingError(
            "database_url",
            f"{scheme}+{driver}:// names a driver that xdb does not use; write {scheme}:// instead, the rest may stay",
        )


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of a setting besides its value. `parse` reads its text and raises ValueError."""

    name: str
    purpose: str
    default: Any
    value_type: Any
    parse: Callable[[str], Any]

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The name in the environment."""
        return PREFIX + self.name.upper()

    def show(self, value: Any) -> str:
        """Write a value as it may be given, with what is secret in it left out."""
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, timedelta):
            return _show_duration(value)
        if isinstance(value, frozenset):
            return ",".join(role for role in Role if role in value)
        if isinstance(value, Mapping):
            return json.dumps(dict.fromkeys(value, "***"))
        if isinstance(value, int) and self.name.endswith("_bytes"):
            return _show_size(value)
        return _without_password(str(value))


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """Settings, and by name where the value of each came from."""

    settings: ServerSettings
    origins: Mapping[str, Origin]


def load_settings(arguments: Mapping[str, str], environment: Mapping[str, str]) -> LoadedSettings:
    """Put settings together.

    Args:
        arguments: Texts by name of the setting; what is not given is absent.
        environment: As `os.environ`; what does not begin with `XDB_` is left alone.

    Raises:
        SettingError: A text cannot be read, or a value is out of range.
    """
    values: dict[str, Any] = {}
    origins = dict.fromkeys(SETTINGS, Origin.DEFAULT)
    for name, setting in SETTINGS.items():
        if name in arguments:
            text, origins[name], source = arguments[name], Origin.ARGUMENT, setting.flag
        elif setting.variable in environment:
            text, origins[name], source = environment[setting.variable], Origin.ENVIRONMENT, setting.variable
        else:
            continue
        try:
            values[name] = setting.parse(text)
        except ValueError as error:
            raise SettingError(name, f"{error} (from {source})") from error
    return LoadedSettings(ServerSettings(**values), origins)


def unknown_variables(environment: Mapping[str, str], known: frozenset[str] = frozenset()) -> list[str]:
    """Give the `XDB_` variables that no setting has: probably slips."""
    names = {setting.variable for setting in SETTINGS.values()} | known
    return sorted(name for name in environment if name.startswith(PREFIX) and name not in names)


def _parse_whole_number(text: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,18}", text.strip()):
        raise ValueError(f"{text!r} is no whole number")
    return int(text)


def _parse_size(text: str) -> int:
    found = re.fullmatch(r"(\d{1,15})\s*(B|KiB|MiB|GiB)?", text.strip())
    if not found:
        raise ValueError(f"{text!r} is no size; write bytes, or 512KiB, or 4MiB")
    return int(found[1]) * _SIZES[found[2] or "B"]


def parse_duration(text: str) -> timedelta:
    """Read a duration such as 250ms, 30s, 5m or 1h; a bare number is seconds.

    Raises:
        ValueError: It is none.
    """
    found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*(ms|s|m|h)?", text.strip())
    if not found:
        raise ValueError(f"{text!r} is no duration; write seconds, or 250ms, 30s, 5m, 1h")
    return float(found[1]) * _DURATIONS[found[2] or "s"]


def _parse_yes_or_no(text: str) -> bool:
    if text.lower() in ("true", "yes", "on", "1"):
        return True
    if text.lower() in ("false", "no", "off", "0"):
        return False
    raise ValueError(f"{text!r} is neither true nor false")


def _parse_headers(text: str) -> Mapping[str, str]:
    try:
        headers = json.loads(text)
    except ValueError:
        headers = None  # not repeated in the message: headers may be secret
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise ValueError('the text is no JSON object of strings like {"Authorization": "Bearer ..."}')
    return headers


def _parse_roles(text: str) -> frozenset[Role]:
    names = [name.strip() for name in text.lower().split(",")]
    try:
        return frozenset(map(Role, names))
    except ValueError as error:
        raise ValueError(f"{text!r} has something else in it than {', '.join(Role)}") from error


def _parser_of_choice(choices: type[StrEnum]) -> Callable[[str], StrEnum]:
    def parse(text: str) -> StrEnum:
        try:
            return choices(text.upper())
        except ValueError as error:
            raise ValueError(f"{text!r} is none of {', '.join(choices)}") from error

    return parse


_SIZES = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": 1024 * MIB}
_DURATIONS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
}


def _show_size(size_bytes: int) -> str:
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % _SIZES[unit] == 0:
            return f"{size_bytes // _SIZES[unit]}{unit}"
    return str(size_bytes)


def _show_duration(duration: timedelta) -> str:
    seconds = duration.total_seconds()
    return f"{seconds:g}s" if seconds == 0 or abs(seconds) >= 1 else f"{seconds * 1000:g}ms"


def _without_password(url: str) -> str:
    return re.sub(r"(://[^/@:]*):[^@]*@", r"\1:***@", url)


def _parser_of(name: str, value_type: Any) -> Callable[[str], Any]:
    if isinstance(value_type, type) and issubclass(value_type, StrEnum):
        return _parser_of_choice(value_type)
    if value_type is int:
        return _parse_size if name.endswith("_bytes") else _parse_whole_number
    return _PARSERS[value_type]


_PARSERS: Mapping[Any, Callable[[str], Any]] = {
    str: str,
    bool: _parse_yes_or_no,
    timedelta: parse_duration,
    Mapping[str, str]: _parse_headers,
    frozenset[Role]: _parse_roles,
    AllowedUrls: AllowedUrls.parse,
    Namespaces: Namespaces.parse,
}


def _settings() -> dict[str, Setting]:
    hints = get_type_hints(ServerSettings, include_extras=True)
    return {each.name: _setting_of(each, *get_args(hints[each.name])) for each in fields(ServerSettings)}


def _setting_of(declared: Field[Any], value_type: Any, purpose: str) -> Setting:
    default = declared.default if declared.default_factory is MISSING else declared.default_factory()
    return Setting(declared.name, purpose, default, value_type, _parser_of(declared.name, value_type))


SETTINGS: Mapping[str, Setting] = _settings()
"""Every setting by name, in the order in which they are shown."""
