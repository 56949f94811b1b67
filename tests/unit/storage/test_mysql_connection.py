"""What a connection to MySQL or MariaDB carries unharmed, how it is addressed and when it is given up."""

import asyncio
import re
import secrets
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from asyncmy.errors import MySQLError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server_stub.core.ports import StoreError
from server_stub.storage.mysql_connection import MysqlAddress, MysqlConnection
from tests.services import mariadb
from tests.services.shared import DatabaseKind

TEXTS = st.text()


async def connect(url: str, *, timeout: timedelta = timedelta(seconds=10)) -> MysqlConnection:
    return await MysqlConnection.open(
        MysqlAddress.of(url), connect_timeout=timeout, lock_timeout=timeout, statement_timeout=timeout
    )


@pytest.fixture
def url(new_database: Callable[[DatabaseKind], str]) -> str:
    return new_database("mariadb")


@pytest.fixture
async def connection(url: str) -> AsyncIterator[MysqlConnection]:
    opened = await connect(url)
    yield opened
    await opened.close()


# --- addresses ---


def test_an_address_has_all_that_its_url_says() -> None:
    address = MysqlAddress.of("mysql+asyncmy://us%40er:p%2Fw%C3%A9@db.example:3307/my%20db")

    assert address == MysqlAddress("db.example", 3307, "us@er", "p/wé", "my db", None)


def test_an_address_has_the_usual_host_and_port_by_default() -> None:
    address = MysqlAddress.of("mariadb:///xdb")

    assert (address.host, address.port, address.user) == ("localhost", 3306, None)


@pytest.mark.parametrize(
    ("query", "verify_mode", "check_hostname"),
    [
        ("ssl_mode=REQUIRED", ssl.CERT_NONE, False),
        ("ssl_mode=verify_ca", ssl.CERT_REQUIRED, False),
        ("ssl_mode=VERIFY_IDENTITY", ssl.CERT_REQUIRED, True),
    ],
)
def test_a_mode_of_encryption_says_what_is_checked(
    query: str, verify_mode: ssl.VerifyMode, check_hostname: bool
) -> None:
    tls = MysqlAddress.of(f"mysql://host/xdb?{query}").tls

    assert tls is not None
    assert (tls.verify_mode, tls.check_hostname) == (verify_mode, check_hostname)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://user:secret@host", "names no database"),
        ("mysql://user:secret@host/", "names no database"),
        ("mysql://user:secret@host/a/b", "names no database"),
        ("mysql://user:secret@host/xdb?sslmode=require", "unknown parameter 'sslmode'; known are ssl_ca, ssl_cert"),
        ("mysql://user:secret@host/xdb?ssl_mode=PREFERRED", "ssl_mode is 'PREFERRED'; it has to be one of DISABLED"),
        ("mysql://user:secret@host/xdb?ssl_mode=", "ssl_mode is ''"),
    ],
)
def test_a_wrong_address_is_refused_without_its_password(url: str, message: str) -> None:
    with pytest.raises(ValueError) as refusal:
        MysqlAddress.of(url)

    assert message in str(refusal.value)
    assert "secret" not in str(refusal.value)


async def test_a_password_may_have_any_characters(url: str, connection: MysqlConnection) -> None:
    user, password = f"u{secrets.token_hex(8)}", "pw:/@é%\U0001f511"
    await connection.execute("GRANT ALL ON *.* TO %s@'%%' IDENTIFIED BY %s", [user, password])

    opened = await connect(re.sub("//.*@", f"//{user}:{quote(password, safe='')}@", url))

    assert await opened.fetch("SELECT CURRENT_USER()") == [(f"{user}@%",)]
    await opened.close()
    await connection.execute("DROP USER %s@'%%'", [user])


# --- what travels ---


@given(text=TEXTS, raw=st.binary(), number=st.integers(-(2**63), 2**63 - 1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_value_comes_back_as_it_went(connection: MysqlConnection, text: str, raw: bytes, number: int) -> None:
    rows = await connection.fetch("SELECT %s, CAST(%s AS BINARY), %s, %s", [text, raw, number, None])

    assert rows == [(text, raw, number, None)]


@given(texts=st.lists(TEXTS, min_size=1, unique=True))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_text_is_found_in_a_list(connection: MysqlConnection, texts: list[str]) -> None:
    [(is_found,)] = await connection.fetch("SELECT (%s, 1) IN %s", [texts[-1], tuple((text, 1) for text in texts)])

    assert is_found == 1


@pytest.mark.parametrize("text", ["%s %d %%", "'; SELECT 2; --", "\\", "\\'", "\0\x1a\r\n", "\U0001f600" * 3])
async def test_a_text_is_never_part_of_the_statement(connection: MysqlConnection, text: str) -> None:
    assert await connection.fetch("SELECT %s; SELECT 1", [text]) == [(text,), (1,)]


async def test_texts_that_differ_in_case_or_blanks_are_different(connection: MysqlConnection) -> None:
    [row] = await connection.fetch("SELECT 'a' = 'A', 'a' = 'a ', 'é' = 'e', 'a' = 'a'")

    assert row == (0, 0, 0, 1)


async def test_statements_of_more_than_a_text_holds_all_run(connection: MysqlConnection) -> None:
    await connection.execute("CREATE TABLE many (id INT PRIMARY KEY, value LONGTEXT)")
    before = connection.statements

    count = await connection.execute_many("INSERT INTO many VALUES (%s, %s)", [(n, "x" * 300_000) for n in range(10)])

    assert count == 10
    assert 2 <= connection.statements - before < 10
    assert await connection.fetch("SELECT COUNT(*), SUM(LENGTH(value)) FROM many") == [(10, 3_000_000)]


async def test_a_statement_that_the_server_would_not_take_is_refused_before(connection: MysqlConnection) -> None:
    with pytest.raises(StoreError, match="max_allowed_packet"):
        await connection.fetch("SELECT LENGTH(%s)", ["é" * 9_000_000])

    assert await connection.fetch("SELECT 1") == [(1,)]


async def test_a_server_that_takes_only_short_statements_is_refused(tmp_path: Path) -> None:
    with mariadb.start(tmp_path / "server", settings={"max-allowed-packet": "4M"}) as server:
        url = server.create_database("xdb")

        with pytest.raises(
            StoreError, match="max_allowed_packet of the database server is 4194304; set it to 16777216"
        ):
            await connect(url)


async def test_the_first_statement_that_fails_ends_a_text(connection: MysqlConnection) -> None:
    await connection.execute("CREATE TABLE some (id INT PRIMARY KEY)")

    with pytest.raises(MySQLError):
        await connection.execute_many("INSERT INTO some VALUES (%s)", [(1,), (1,), (2,)])

    assert await connection.fetch("SELECT id FROM some") == [(1,)]


# --- when it is given up ---


async def test_a_connection_is_closed_when_its_task_is_cancelled(connection: MysqlConnection) -> None:
    asking = asyncio.create_task(connection.fetch("SELECT SLEEP(20)"))
    await until(lambda: connection.statements > 1)

    asking.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asking
    assert connection.is_closed


async def test_a_connection_that_the_server_has_closed_is_known_to_be(url: str, connection: MysqlConnection) -> None:
    other = await connect(url)
    [(number,)] = await connection.fetch("SELECT CONNECTION_ID()")

    await other.execute(f"KILL {number}")

    await until(lambda: connection.is_closed)
    await other.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # the server does not tell
            await asyncio.sleep(0.005)


async def test_a_server_that_is_frozen_is_not_waited_for(tmp_path: Path) -> None:
    with mariadb.start(tmp_path / "server") as server:
        connection = await connect(server.create_database("xdb"), timeout=timedelta(seconds=1))

        server.freeze()
        with pytest.raises(TimeoutError):
            await connection.fetch("SELECT 1")
        server.thaw()

        assert connection.is_closed


# --- encryption ---


def make_certificate(directory: Path, name: str, subject: str, *more: str) -> None:
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    command += [
        "-subj",
        f"/CN={subject}",
        "-keyout",
        f"{directory}/{name}.key",
        "-out",
        f"{directory}/{name}.pem",
        *more,
    ]
    subprocess.run(command, check=True, capture_output=True)


async def test_an_encrypted_connection_checks_whom_it_talks_to(tmp_path: Path) -> None:
    make_certificate(tmp_path, "server", "db.example", "-addext", "subjectAltName=DNS:localhost")
    make_certificate(tmp_path, "other", "db.example")
    certificate = {"ssl-cert": f"{tmp_path}/server.pem", "ssl-key": f"{tmp_path}/server.key"}
    with mariadb.start(tmp_path / "server", settings=certificate) as server:
        by_address = server.create_database("xdb")
        by_name = by_address.replace("127.0.0.1", "localhost")

        async def cipher(url: str, query: str) -> Any:
            connection = await connect(f"{url}?{query}")
            [(_, name)] = await connection.fetch("SHOW STATUS LIKE 'Ssl_cipher'")
            await connection.close()
            return name

        assert await cipher(by_address, "") == ""
        assert await cipher(by_address, "ssl_mode=REQUIRED")
        assert await cipher(by_address, f"ssl_ca={tmp_path}/server.pem")
        assert await cipher(by_name, f"ssl_mode=VERIFY_IDENTITY&ssl_ca={tmp_path}/server.pem")
        for url, query in (
            (by_address, f"ssl_mode=VERIFY_IDENTITY&ssl_ca={tmp_path}/server.pem"),
            (by_name, f"ssl_mode=VERIFY_CA&ssl_ca={tmp_path}/other.pem"),
            (by_name, "ssl_mode=VERIFY_CA"),
        ):
            with pytest.raises(MySQLError, match="certificate verify failed"):
                await cipher(url, query)
