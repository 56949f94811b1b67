"""Where the engines of a run get their databases."""

from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import psutil
import pytest

from benchmarks.commands import cpu_s
from benchmarks.databases import DatabaseKind, kind_of, postgres_beside, sqlite_databases

COSTLY_QUERY = "SELECT sum(number) FROM generate_series(1, 300000) AS number"


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        pytest.param("sqlite:////data/bench.db", DatabaseKind.SQLITE, id="sqlite"),
        pytest.param("postgresql://user:secret@host/db", DatabaseKind.POSTGRESQL, id="postgresql"),
    ],
)
def test_url_tells_the_kind_of_database(url: str, kind: DatabaseKind) -> None:
    assert kind_of(url) is kind


def test_each_run_has_a_sqlite_file_of_its_own() -> None:
    with sqlite_databases() as databases, databases.new() as first, databases.new() as second:
        paths = [Path(url.removeprefix("sqlite:///")) for url in (first, second)]
        assert paths[0] != paths[1]
        assert all(path.parent.is_dir() for path in paths)

    assert not any(path.parent.exists() for path in paths)


async def test_postgres_database_is_gone_after_its_run(postgresql_server_url: str) -> None:
    with postgres_beside(postgresql_server_url) as databases, databases.new() as url:
        assert await _ask(url, "SELECT current_database()") == urlsplit(url).path[1:]

    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await asyncpg.connect(url)


async def test_cpu_of_postgres_is_that_of_its_sessions_too(postgresql_server_url: str) -> None:
    with postgres_beside(postgresql_server_url) as databases:
        assert databases.server_process_id is not None
        before_s = cpu_s(psutil.Process(databases.server_process_id))
        while cpu_s(psutil.Process(databases.server_process_id)) == before_s:
            await _ask(postgresql_server_url, COSTLY_QUERY)


async def _ask(url: str, query: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()
