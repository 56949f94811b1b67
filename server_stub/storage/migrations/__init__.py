"""How the system tables get from one version to the next: a numbered module for each.

A migration stays as it was released, whatever `schema` says since: it brings a database of the version before it to
what that release installed. Rows of running executions stay, and mean the same afterwards.
"""

from collections.abc import Callable, Mapping
from typing import Final

from server_stub.storage.migrations import m0002_shards_and_members, m0003_requests_and_history
from server_stub.storage.schema_change import SchemaChange, SchemaDialect

FIRST_VERSION: Final = 1
"""That of the first release."""

_MIGRATIONS: Final[Mapping[int, Callable[..., SchemaChange]]] = {
    2: m0002_shards_and_members.change,
    3: m0003_requests_and_history.change,
}


def migrations_since(version: int, dialect: SchemaDialect, *, num_shards: int) -> list[SchemaChange]:
    """Give the changes after `version`, in order; none after the newest one.

    Args:
        version: What the database has, `FIRST_VERSION` or more.
        dialect: What kind of database it is.
        num_shards: How many shards its tables were installed with.
    """
    return [
        change(dialect, num_shards=num_shards) for number, change in sorted(_MIGRATIONS.items()) if number > version
    ]
