"""The application's own table: `python -m examples.user_signup.table signup.db` creates it."""

import sqlite3
import sys
from contextlib import closing
from pathlib import Path

CREATE_TABLE = Path(__file__).with_name("table.sql")


def create_table(database: Path) -> None:
    """Create the table in an SQLite file, unless it is there; xdb never creates or alters it."""
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(CREATE_TABLE.read_text())


def read_row(database: Path, user_id: str) -> dict[str, str | None]:
    """Read a user's row by plain SQL, column by column; empty if there is none."""
    with closing(sqlite3.connect(database)) as connection:
        connection.row_factory = sqlite3.Row
        row = connection.execute("SELECT * FROM user_sign_up WHERE user_id = ?", (user_id,)).fetchone()
    return dict(row) if row else {}


if __name__ == "__main__":
    create_table(Path(sys.argv[1]))
