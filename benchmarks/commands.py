"""The processes of an engine. The standard library and psutil only: engines in other environments import it."""

import asyncio
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import psutil

ROOT = Path(__file__).parents[1]
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
LOG_TAIL_CHARACTERS = 4000


class Command:
    """A command that can be killed and started again."""

    def __init__(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self._arguments = arguments
        self._log = log
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
        self._process = self._started()

    @property
    def cpu_s(self) -> float:
        """CPU time since it was started last, that of its children included."""
        return cpu_s(self._process)

    @property
    def process(self) -> psutil.Process:
        """The process that was started last."""
        return self._process

    def kill_and_start(self) -> float:
        """Kill it and its children with SIGKILL and start it again at once.

        Returns:
            When it was started again, in seconds since the epoch.
        """
        family = self._family()
        for process in family:
            process.kill()
        psutil.wait_procs(family, STOP_TIMEOUT_S)
        started_at_s = time.time()
        self._process = self._started()
        return started_at_s

    def stop(self) -> None:
        """Ask it to end, and kill it when it does not, and whatever it leaves behind."""
        family = self._family()
        if not family:
            return
        self._process.terminate()
        with suppress(psutil.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        _, alive = psutil.wait_procs(family, timeout=0)
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, STOP_TIMEOUT_S)

    async def answers(self, url: str) -> None:
        """Wait until a GET of the URL succeeds.

        Raises:
            RuntimeError: The command ended, or gave no good answer in time; the text has the end of its log.
        """
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            if await asyncio.to_thread(_is_answered, url):
                return
            await asyncio.sleep(0.05)
        state = "is not ready" if self._process.poll() is None else f"ended with status {self._process.returncode}"
        raise RuntimeError(f"{url} {state}; its log ends:\n{self._log.read_text()[-LOG_TAIL_CHARACTERS:]}")

    def _family(self) -> list[psutil.Process]:
        """Give the process and its children; nothing when it has ended."""
        return [] if self._process.poll() is not None else [self._process, *self._process.children(recursive=True)]

    def _started(self) -> psutil.Popen:
        with self._log.open("ab") as output:
            return psutil.Popen(
                self._arguments, cwd=ROOT, env=self._environment, stdout=output, stderr=subprocess.STDOUT
            )


@contextmanager
def running(arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> Iterator[Command]:
    """Run a command from the root of the repository, and stop it at the end.

    Args:
        arguments: The program and its arguments.
        log: The file that its output is appended to.
        environment: Variables that it gets besides ours.
    """
    command = Command(arguments, log, environment or {})
    try:
        yield command
    finally:
        command.stop()


def free_ports(count: int) -> list[int]:
    """Find ports of the loopback interface that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def cpu_s(process: psutil.Process) -> float:
    """Give the CPU time of a process and its children, those that have ended included, user and system."""
    times = process.cpu_times()
    own_s = times.user + times.system + times.children_user + times.children_system
    return own_s + sum(_cpu_s_of_child(child) for child in process.children())


def _cpu_s_of_child(child: psutil.Process) -> float:
    try:
        return cpu_s(child)
    except psutil.NoSuchProcess:
        return 0.0  # it ended a moment ago, and its parent counts it from now on


def _is_answered(url: str) -> bool:
    try:
        with urlopen(url, timeout=START_TIMEOUT_S):
            return True
    except OSError:
        return False  # it does not listen yet, or says that it is not ready
