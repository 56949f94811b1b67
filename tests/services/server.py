"""What the database servers of tests have in common: a process on a free port, with a directory of its own."""

import asyncio
import secrets
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import psutil

from tests.services.guard import Guard, end_tree

_START_DEADLINE_S = 60
_STOP_DEADLINE_S = 60
_CLOSING_S = 0.01
_POLL_S = 0.02
_LOG_TAIL_CHARACTERS = 2_000

# Below the ports of outgoing connections on Linux and macOS, so that none takes the port while the server is down.
_PORTS = range(20_000, 32_000)

T = TypeVar("T")


class MissingDatabase(Exception):
    """A database is not installed here. The message is one line that says what is missing and how to get it."""


class ServerFailed(Exception):
    """A database server did not start or stop. The message ends with the tail of its log."""


class DatabaseServer(ABC):
    """A database server that belongs to this process and ends with it, even when this process is killed.

    Attributes:
        directory: Everything the server writes: its data, and `server.log`.
        port: Its port on 127.0.0.1, the same after each restart.
    """

    stop_signal: signal.Signals
    """The signal that disconnects the clients and shuts the server down cleanly."""

    def __init__(self, directory: Path, command: list[str], port: int) -> None:
        self.directory = directory
        self.port = port
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._guard = Guard()

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL of the superuser, as it is given to `create_database`."""

    @abstractmethod
    def create_database(self, name: str) -> str:
        """Create an empty database and return its URL. Blocks for as long as the server takes."""

    @abstractmethod
    def drop_database(self, name: str) -> None:
        """Drop a database if it exists, and disconnect its clients first. Blocks for as long as the server takes."""

    @abstractmethod
    async def _probe(self) -> bool:
        """Say whether the server answers a client."""

    @property
    def pid(self) -> int:
        """The id of the server's main process, which must be running."""
        return self._running().pid

    def stop(self) -> None:
        """Shut the server down cleanly: clients are disconnected, their transactions rolled back."""
        process = self._running()
        self.thaw()
        process.send_signal(self.stop_signal)
        try:
            process.wait(_STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise self._failure(f"did not stop within {_STOP_DEADLINE_S} s") from None
        self._process = None

    def kill(self) -> None:
        """Kill all processes of the server at once, as a machine does that loses its power. It may be frozen."""
        process = self._running()
        if process.poll() is None:
            end_tree(psutil.Process(process.pid))
            process.wait()
        self._process = None

    def freeze(self) -> None:
        """Stop all processes of the server in their tracks: connections stay open and nobody answers."""
        main = psutil.Process(self.pid)
        main.suspend()
        for child in main.children(recursive=True):
            child.suspend()

    def thaw(self) -> None:
        """Let a frozen server go on. One that is not frozen is left alone."""
        main = psutil.Process(self.pid)
        for child in main.children(recursive=True):
            child.resume()
        main.resume()

    def restart(self) -> None:
        """Start the server again, on the same port with the same data, after stopping it cleanly if it runs."""
        if self._process is not None:
            self.stop()
        self.launch()

    def close(self) -> None:
        """End the server and remove its directory. Does nothing when it is closed already."""
        if self._process is not None:
            self.kill()
        self._guard.close()
        self._forget()
        shutil.rmtree(self.directory, ignore_errors=True)

    def launch(self) -> None:
        """Start the process, and return when the server answers.

        Raises:
            ServerFailed: It ended, or did not answer within a minute.
        """
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._guard.watch(self._process.pid)
        deadline_s = time.monotonic() + _START_DEADLINE_S
        while not run_blocking(self._probe()):
            if self._process.poll() is not None:
                raise self._failure(f"ended with exit code {self._process.returncode} at its start")
            if time.monotonic() > deadline_s:
                raise self._failure(f"did not answer within {_START_DEADLINE_S} s")
            time.sleep(_POLL_S)

    def _forget(self) -> None:
        """Remove what a killed server leaves outside its directory."""
        return

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server is not running; restart() starts it"
        return self._process

    def _failure(self, what: str) -> ServerFailed:
        tail = (self.directory / "server.log").read_text(errors="replace")[-_LOG_TAIL_CHARACTERS:]
        return ServerFailed(f"{self._command[0]} in {self.directory} {what}; its log ends:\n{tail}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def free_port() -> int:
    """Find a port that nobody listens on."""
    while True:
        port = secrets.choice(_PORTS)  # not from `random`, whose seed all workers of a test run share
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a thread of its own, also where an event loop runs already."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, _and_close(work)).result()


async def _and_close(work: Coroutine[Any, Any, T]) -> T:
    try:
        return await work
    finally:
        # A driver whose connection was refused closes its transport in the next turns of the loop.
        await asyncio.sleep(_CLOSING_S)


def prepare(command: list[str]) -> None:
    """Run a command that prepares a server's directory.

    Raises:
        ServerFailed: It failed. The message ends with what it printed.
    """
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServerFailed(f"{' '.join(command)} failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}")
