"""Commands that run until they are stopped."""

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

_ROOT = Path(__file__).parents[3]
_DEADLINE_S = 30.0


class RunningCommand:
    """`xdb <arguments>` in a process of its own, from when it has printed its URL.

    Args:
        arguments: After `xdb`.
        directory: Where it runs.
        environment: Variables besides those of the test.
    """

    def __init__(self, *arguments: str, directory: Path, environment: dict[str, str] | None = None) -> None:
        self.log_file = directory / f"{arguments[0]}.log"
        with self.log_file.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "server_stub.cli", *arguments],
                cwd=directory,
                env=os.environ | {"PYTHONPATH": str(_ROOT), "PYTHONUNBUFFERED": "1"} | (environment or {}),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.first_line = self._read_line()
        found = re.search(r"http://\S+", self.first_line)
        if found is None:
            self._process.kill()
            raise AssertionError(f"xdb {arguments[0]} did not start: {self.first_line}{self.log_file.read_text()}")
        self.url = found[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        """Send a signal and give the exit status; does nothing more when it has stopped."""
        self._process.send_signal(signal_number)
        with self._process:
            return self._process.wait(_DEADLINE_S)

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            began_s = time.monotonic()
            while not selector.select(1):
                if time.monotonic() - began_s > _DEADLINE_S:
                    return ""
        return self._process.stdout.readline()
