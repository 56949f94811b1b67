"""The application's own table. xdb reads and writes its rows and never creates or alters it."""

import sqlite3
from contextlib import closing
from pathlib import Path

# --8<-- [start:ddl]
CREATE_TABLE = """
CREATE TABLE IF NOT EXISTS user_sign_up (
    user_id TEXT PRIMARY KEY,
    form    JSON NOT NULL,
    status  TEXT NOT NULL,
    source  TEXT
)
"""
# --8<-- [end:ddl]


def create_table(database: Path) -> None:
    """Create the table in an SQLite file, unless it is there."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(CREATE_TABLE)


def read_row(database: Path, user_id: str) -> dict[str, str | None]:
    """Read a user's row by plain SQL, column by column; empty if there is none."""
    with closing(sqlite3.connect(database)) as connection:
        connection.row_factory = sqlite3.Row
        row = connection.execute("SELECT * FROM user_sign_up WHERE user_id = ?", (user_id,)).fetchone()
    return dict(row) if row else {}
