"""What no HTTP client would send: bodies that lie about their length, have no end, or are no HTTP at all."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import httpx
import pytest

from tests.contract.service_api.requests import REQUESTS, path_of
from tests.support.real_processes import RunningCommand
from xdb_sdk.protocol import SERVICE_BATCH_PATH, ErrorBody, ErrorSubType

LIMITS = (
    "--body-timeout",
    "300ms",
    "--max-call-bytes",
    "4KiB",
    "--max-value-bytes",
    "1KiB",
    "--max-batch-bytes",
    "8KiB",
)


@pytest.fixture(scope="module")
def strict_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCommand]:
    with RunningCommand("server", "--port", "0", *LIMITS, directory=tmp_path_factory.mktemp("strict")) as running:
        yield running


@pytest.fixture
def connection(strict_server: RunningCommand) -> Iterator[socket.socket]:
    url = urlsplit(strict_server.url)
    assert url.hostname is not None
    with closing(socket.create_connection((url.hostname, url.port or 80), timeout=20)) as made:
        yield made


def head(path: str, *headers: str) -> bytes:
    """Write the head of a request."""
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: xdb", *headers, "", ""]).encode()


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """Read until the server hangs up, and give the status and the body of the one answer."""
    received = b""
    while piece := connection.recv(65_536):
        received += piece
    top, _, body = received.partition(b"\r\n\r\n")
    return int(top.split()[1]), body


def send_without_end(connection: socket.socket, piece: bytes) -> None:
    """Send until the server does not take any more."""
    connection.setblocking(True)
    try:
        for _ in range(100_000):
            connection.sendall(piece)
    except ConnectionError:
        return
    raise AssertionError("the server went on reading")


def test_body_shorter_than_announced_is_given_up(connection: socket.socket) -> None:
    connection.sendall(head(path_of("start"), "Content-Length: 1000") + b'{"processId"')

    status, body = answer(connection)

    assert status == 400
    assert "body_timeout" in ErrorBody.model_validate_json(body).details


@pytest.mark.parametrize("path", [path_of("start"), SERVICE_BATCH_PATH])
def test_body_announced_too_large_is_refused_at_once(connection: socket.socket, path: str) -> None:
    connection.sendall(head(path, "Content-Length: 999999999999"))

    status, body = answer(connection)

    assert status == 400
    assert ErrorBody.model_validate_json(body).error_sub_type is ErrorSubType.PAYLOAD_TOO_LARGE


@pytest.mark.parametrize("path", [path_of("start"), SERVICE_BATCH_PATH])
def test_body_without_end_is_not_read_for_ever(connection: socket.socket, path: str) -> None:
    connection.sendall(head(path, "Transfer-Encoding: chunked"))

    send_without_end(connection, b"400\r\n" + b" " * 1024 + b"\r\n")


def test_server_goes_on_after_garbage(strict_server: RunningCommand, connection: socket.socket) -> None:
    connection.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")

    while connection.recv(65_536):
        pass
    assert httpx.get(strict_server.url + "/healthz").status_code == 200


def test_requests_may_follow_each_other_on_one_connection(connection: socket.socket) -> None:
    body = json.dumps(REQUESTS["list"]).encode()
    request = head(path_of("list"), f"Content-Length: {len(body)}") + body
    last = head(path_of("list"), f"Content-Length: {len(body)}", "Connection: close") + body

    connection.sendall(request + request + last)

    received = b""
    while piece := connection.recv(65_536):
        received += piece
    assert received.count(b"HTTP/1.1 200 OK") == 3
