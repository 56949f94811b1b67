"""The version of the system tables, and what a server says of a database.

Hot statements are written by hand in each dialect's module; what runs once (DDL) is derived from `system_tables`.
Identifiers compare byte by byte on every dialect.
"""

import re
from collections.abc import Collection, Mapping
from typing import Final

from server_stub.core.ports import StoreError
from server_stub.storage.migrations import migrations_since
from server_stub.storage.schema_change import CLUSTER_TABLE, VERSION_KEY, SchemaChange, SchemaDialect

SCHEMA_VERSION: Final = 3
INSTALLING: Final = f"installing {SCHEMA_VERSION}"
"""The version while the tables are being created, where each of these statements commits by itself."""
NUM_SHARDS_KEY: Final = "num_shards"
WORK_KIND: Final = "work"
SYSTEM_PREFIX: Final = "xdb_sys_"
"""No table of a user may be named so."""
TABLE_NAMES: Final = (
    "xdb_sys_process_execution",
    "xdb_sys_async_state_execution",
    "xdb_sys_timer_tasks",
    "xdb_sys_internal_queue",
    "xdb_sys_local_attribute",
    "xdb_sys_request",
    "xdb_sys_history",
    CLUSTER_TABLE,
    "xdb_sys_shard",
    "xdb_sys_member",
)


class SchemaError(StoreError):
    """The system tables are not as this server needs them; they are as they were."""


class SchemaMissing(SchemaError):
    """There are no system tables."""

    def __init__(self) -> None:
        super().__init__("the database has no xdb tables; create them with `xdb schema install`")


class SchemaUnfinished(SchemaError):
    """Creating the system tables was cut short, or is going on. Only a database that commits each table has this."""

    def __init__(self) -> None:
        super().__init__("the xdb tables are not all there yet; finish what was begun with `xdb schema install`")


class SchemaOutdated(SchemaError):
    """The system tables were made by an older server."""

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(
            f"the xdb tables have schema version {version}, this server needs {SCHEMA_VERSION}; "
            "upgrade them with `xdb schema upgrade`, after a backup"
        )


class SchemaTooNew(SchemaError):
    """The system tables were made by a newer server."""

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(
            f"the xdb tables have schema version {version}, newer than the {SCHEMA_VERSION} that this server knows; "
            "run the newer server"
        )


class SchemaDamaged(SchemaError):
    """Some system tables, or what is known of them, are missing: somebody removed them."""

    def __init__(self, what: str) -> None:
        super().__init__(f"the xdb tables are incomplete: {what}; restore them from a backup, nothing was changed")


class ShardCountMismatch(SchemaError):
    """The system tables were made for another number of shards, which stays as it is once executions are among them."""

    def __init__(self, installed: int, asked: int) -> None:
        self.installed = installed
        self.asked = asked
        super().__init__(
            f"the xdb tables were installed with num_shards={installed}, this server is set to {asked}; "
            f"set num_shards to {installed}"
        )


class LossyCharset(SchemaError):
    """The database would change texts that it is given, or take different ids for the same one."""


class SchemaChangeRefused(SchemaError):
    """The database refused to create or alter a system table.

    What was done before is kept on MySQL and MariaDB; repeat the command once the reason is gone.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(f"the database refuses to change the xdb tables: {reason}")


def check(table_names: Collection[str], facts: Mapping[str, str], *, num_shards: int | None = None) -> None:
    """Say whether a database has the system tables of this very version.

    Args:
        table_names: The tables there are, the user's among them.
        facts: The rows of xdb_sys_cluster, none when the table is missing.
        num_shards: How many shards there have to be; None when any number will do.

    Raises:
        SchemaMissing, SchemaUnfinished, SchemaOutdated, SchemaTooNew, SchemaDamaged: It has not.
        ShardCountMismatch: It has, with another number of shards.
    """
    version = installed_version(table_names, facts)
    if version < SCHEMA_VERSION:
        raise SchemaOutdated(version)
    missing = sorted(name for name in TABLE_NAMES if name not in table_names)
    if missing:
        raise SchemaDamaged(f"{', '.join(missing)} missing")
    installed = installed_num_shards(facts)
    if num_shards is not None and installed != num_shards:
        raise ShardCountMismatch(installed, num_shards)


def installed_version(table_names: Collection[str], facts: Mapping[str, str]) -> int:
    """Give the version of the system tables, this server's or an older one.

    Raises:
        SchemaMissing, SchemaUnfinished, SchemaTooNew, SchemaDamaged: There is none that this server can upgrade.
    """
    found = [name for name in TABLE_NAMES if name in table_names]
    if not found:
        raise SchemaMissing
    if CLUSTER_TABLE not in found:
        raise SchemaDamaged(f"table {CLUSTER_TABLE}, which tells their version, does not exist")
    # The first table is there a moment before its first row.
    if facts.get(VERSION_KEY) == INSTALLING or (not facts and found == [CLUSTER_TABLE]):
        raise SchemaUnfinished
    version = _number(facts, VERSION_KEY)
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(version)
    return version


def installed_num_shards(facts: Mapping[str, str]) -> int:
    """Give the number of shards that the tables were installed with.

    Raises:
        SchemaDamaged: It is unknown.
    """
    return _number(facts, NUM_SHARDS_KEY)


def _number(facts: Mapping[str, str], key: str) -> int:
    text_ = facts.get(key)
    if text_ is None:
        raise SchemaDamaged(f"table {CLUSTER_TABLE} has no row {key!r}")
    if not text_.isascii() or not text_.isdigit():
        raise SchemaDamaged(f"{key} in table {CLUSTER_TABLE} is {text_!r}, not a number")
    return int(text_)


def installation(dialect: SchemaDialect, *, num_shards: int) -> SchemaChange:
    """Give what creates everything in an empty database; the first statement creates the table of the version."""
    from server_stub.storage.system_tables import definitions

    rows = [
        f"INSERT INTO {CLUSTER_TABLE} (name, value) VALUES ('{NUM_SHARDS_KEY}', '{num_shards}')",  # noqa: S608
        shard_rows(num_shards),
    ]
    return SchemaChange(SCHEMA_VERSION, definitions(dialect), rows)


def upgrades(dialect: SchemaDialect, table_names: Collection[str], facts: Mapping[str, str]) -> list[SchemaChange]:
    """Give what brings the system tables to this server's version, in order; nothing when they have it.

    Raises:
        SchemaMissing, SchemaUnfinished, SchemaTooNew, SchemaDamaged: They cannot be upgraded.
    """
    version = installed_version(table_names, facts)
    return migrations_since(version, dialect, num_shards=installed_num_shards(facts))


def script(dialect: SchemaDialect, *, upgrade_from: int | None, num_shards: int) -> str:
    """Write the statements of an install, or of an upgrade, as a script for the command line of the database.

    Args:
        dialect: What kind of database it is for.
        upgrade_from: The version that the database has; None to install.
        num_shards: How many shards there are to be, or were at the install.
    """
    if upgrade_from is None:
        changes = [installation(dialect, num_shards=num_shards)]
        what = f"install version {SCHEMA_VERSION}"
    else:
        changes = migrations_since(upgrade_from, dialect, num_shards=num_shards)
        what = f"upgrade version {upgrade_from} to version {SCHEMA_VERSION}"
    statements = [statement for change in changes for statement in _in_transaction(dialect, change)]
    title = f"-- xdb on {dialect}: {what} of the system tables, num_shards={num_shards}\n"
    return title + "".join(f"\n{statement};\n" for statement in statements)


def _in_transaction(dialect: SchemaDialect, change: SchemaChange) -> list[str]:
    definitions = [re.sub(r"\s+\n", "\n", definition.sql) for definition in change.definitions]
    if dialect.has_transactional_ddl:
        return ["BEGIN", *definitions, *change.row_statements, *change.drops, "COMMIT"]
    return [*definitions, "BEGIN", *change.row_statements, "COMMIT", *change.drops]


def shard_rows(num_shards: int) -> str:
    """Give the statement that makes the rows of all shards, owned by nobody."""
    columns = "kind, shard_id, range_id, lease_until_ms, handover_range, handover_until_ms"
    rows = ", ".join(f"('{WORK_KIND}', {shard_id}, 0, 0, 0, 0)" for shard_id in range(num_shards))
    return f"INSERT INTO xdb_sys_shard ({columns}) VALUES {rows}"  # noqa: S608
