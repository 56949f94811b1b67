"""What the release with version 1 created in each kind of database, and what a server of it has written."""

import re
from pathlib import Path

from server_stub.storage.schema_change import SchemaDialect
from tests.schema.databases import SchemaDatabase

WRITTEN_AT_MS = 1_767_225_601_000

_DIRECTORY = Path(__file__).parent


def statements_of(name: str) -> list[str]:
    """Give the statements of a file beside this one."""
    return re.split(r";\n+", (_DIRECTORY / name).read_text().strip().removesuffix(";"))


async def install_version_1(database: SchemaDatabase, *, written_at_ms: int = WRITTEN_AT_MS) -> None:
    """Make an empty database one of that release, with an execution that is running and one that is closed.

    Args:
        database: The database.
        written_at_ms: When its server is to have written the rows; every instant in them moves along.
    """
    rows = [_moved(statement, written_at_ms - WRITTEN_AT_MS) for statement in statements_of("rows.sql")]
    await database.run([*statements_of(f"{database.dialect}.sql"), *rows])
    if database.dialect is SchemaDialect.POSTGRESQL:
        # The server let the database count; the rows here bring their numbers with them.
        await database.run(
            f"SELECT setval(pg_get_serial_sequence('{table}', 'row_id'), max(row_id)) FROM {table}"
            for table in ("xdb_sys_async_state_execution", "xdb_sys_user_event")
        )


def _moved(statement: str, by_ms: int) -> str:
    return re.sub(r"\b17\d{11}\b", lambda instant: str(int(instant[0]) + by_ms), statement)
