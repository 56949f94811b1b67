"""Servers and workers as processes of their own, that can be stopped and killed."""

import os
import re
import selectors
import signal
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.services.server import free_port

__all__ = ["RunningCommand", "free_port"]

_ROOT = Path(__file__).parents[2]
_DEADLINE_S = 60.0


class RunningCommand:
    """`xdb <arguments>` in a process of its own. Entering the context, or its URL, waits until it has printed that.

    Args:
        arguments: After `xdb`.
        directory: Where it runs, and where its log goes: errors are appended to `<first argument>.log`.
        environment: Variables besides those of the test.
        module: Run instead of the command line; it prints a URL too.
    """

    def __init__(
        self,
        *arguments: str,
        directory: Path,
        environment: dict[str, str] | None = None,
        module: str = "server_stub.cli",
    ) -> None:
        self._name = " ".join([module, *arguments])
        self.log_file = directory / f"{arguments[0]}.log"
        with self.log_file.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                cwd=directory,
                env=os.environ | {"PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1"} | (environment or {}),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def __enter__(self) -> Self:
        try:
            _ = self.url
        except BaseException:
            self.stop(signal.SIGKILL)
            raise
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @cached_property
    def first_line(self) -> str:
        """What it printed first; empty when it ended without a word."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(_DEADLINE_S):
                return ""
        return self._process.stdout.readline()

    @cached_property
    def url(self) -> str:
        """Where it is reached, as it says itself."""
        found = re.search(r"http://\S+", self.first_line)
        if found is None:
            raise AssertionError(f"{self._name} did not start: {self.first_line}{self.log_file.read_text()}")
        return found[0]

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet; a frozen one has not."""
        return self._process.poll() is None

    def send(self, signal_number: int) -> None:
        """Send a signal, and do not wait for what comes of it."""
        self._process.send_signal(signal_number)

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        """Send a signal and give the exit status; does nothing more when it has stopped."""
        self._process.send_signal(signal_number)
        return self.wait()

    def wait(self) -> int:
        """Wait until it ends by itself, and give its exit status."""
        with self._process:
            return self._process.wait(_DEADLINE_S)
