"""One test, every kind of database."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.schema.databases import MariadbDatabase, PostgresDatabase, SchemaDatabase, SqliteDatabase
from tests.services.shared import DatabaseKind

NewDatabase = Callable[[], SchemaDatabase]


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def new(request: pytest.FixtureRequest, tmp_path: Path, new_database: Callable[[DatabaseKind], str]) -> NewDatabase:
    """Give a function that makes an empty database of one kind."""
    match request.param:
        case "postgresql":
            return lambda: PostgresDatabase(new_database("postgresql"))
        case "mariadb":
            return lambda: MariadbDatabase(new_database("mariadb"))
        case _:
            paths = (tmp_path / f"{number}.db" for number in range(10))
            return lambda: SqliteDatabase(next(paths))


@pytest.fixture
def database(new: NewDatabase) -> SchemaDatabase:
    """Give an empty database."""
    return new()


@pytest.fixture
def postgres(new_database: Callable[[DatabaseKind], str]) -> PostgresDatabase:
    """Give an empty PostgreSQL database."""
    return PostgresDatabase(new_database("postgresql"))


@pytest.fixture
def mariadb(new_database: Callable[[DatabaseKind], str]) -> MariadbDatabase:
    """Give an empty MariaDB database."""
    return MariadbDatabase(new_database("mariadb"))


@pytest.fixture
def another_mariadb(new_database: Callable[[DatabaseKind], str]) -> MariadbDatabase:
    """Give one more."""
    return MariadbDatabase(new_database("mariadb"))
