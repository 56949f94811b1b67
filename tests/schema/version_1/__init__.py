"""What the release with version 1 created in each kind of database, and what a server of it has written."""

import re
from pathlib import Path

from tests.schema.databases import SchemaDatabase

_DIRECTORY = Path(__file__).parent


def statements_of(name: str) -> list[str]:
    """Give the statements of a file beside this one."""
    return re.split(r";\n+", (_DIRECTORY / name).read_text().strip().removesuffix(";"))


async def install_version_1(database: SchemaDatabase) -> None:
    """Make an empty database one of that release, with an execution that is running and one that is closed."""
    await database.run([*statements_of(f"{database.dialect}.sql"), *statements_of("rows.sql")])
