"""What a change of the system tables consists of: an install, or a migration from one version to the next."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

CLUSTER_TABLE: Final = "xdb_sys_cluster"
VERSION_KEY: Final = "schema_version"

MYSQL_COLLATION: Final = "utf8mb4_0900_bin"
MARIADB_COLLATION: Final = "utf8mb4_nopad_bin"
"""Every Unicode text, compared byte by byte; in `utf8mb4_bin`, which both have, trailing blanks would not count."""


class SchemaDialect(StrEnum):
    """The databases whose system tables are created by statements of their own."""

    SQLITE = "sqlite"
    POSTGRESQL = "postgresql"
    MYSQL = "mysql"
    MARIADB = "mariadb"

    @property
    def has_transactional_ddl(self) -> bool:
        """Whether a transaction that creates and alters tables can be rolled back."""
        return self in (SchemaDialect.SQLITE, SchemaDialect.POSTGRESQL)


COLLATIONS: Final = {SchemaDialect.MYSQL: MYSQL_COLLATION, SchemaDialect.MARIADB: MARIADB_COLLATION}


@dataclass(frozen=True, slots=True)
class Definition:
    """A statement that creates or alters something.

    `creates` is what is there once it has run: "table", "table.column" or "table.index"; None if it may be repeated.
    Where each such statement commits by itself, this tells what was done before the change was cut short.
    """

    sql: str
    creates: str | None = None


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """What brings the system tables to `version`: definitions in order, and then rows, in one transaction.

    `drops` come last, of what nobody misses or minds any more: one that is not run does no harm.
    """

    version: int
    definitions: Sequence[Definition]
    rows: Sequence[str]
    drops: Sequence[str] = ()

    @property
    def row_statements(self) -> list[str]:
        """The statements after the definitions; the last ones write the version."""
        return [*self.rows, *version_statements(str(self.version))]

    @property
    def statements(self) -> list[str]:
        """All statements in order."""
        return [*(definition.sql for definition in self.definitions), *self.row_statements, *self.drops]


def version_statements(version: str) -> list[str]:
    """Give the statements that write the version, whether or not there is one."""
    return [
        f"DELETE FROM {CLUSTER_TABLE} WHERE name = '{VERSION_KEY}'",  # noqa: S608
        f"INSERT INTO {CLUSTER_TABLE} (name, value) VALUES ('{VERSION_KEY}', '{version}')",  # noqa: S608
    ]
