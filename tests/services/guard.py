"""A process that stops a database server once the process that started it is gone, however that ended.

It reads the ids of server processes from its input, one a line. The end of the input is the end of the starter, since
the operating system closes the pipe even of a process that was killed.
"""

import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil

_GRACE_S = 5
_POLL_S = 0.005


class Guard:
    """The starter's side: name the process to end, or let go."""

    def __init__(self) -> None:
        command = [sys.executable, "-P", __file__]
        # A session of its own keeps Ctrl-C away: whoever was interrupted may still want to stop the server itself.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True, text=True)

    def watch(self, pid: int) -> None:
        """End the process `pid`, and no other named before, when this process ends or calls `close`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{pid}\n")
        self._process.stdin.flush()

    def close(self) -> None:
        """End the process watched last if it still runs, and return when it is gone."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def end_tree(process: psutil.Process) -> None:
    """Kill a process and all its descendants at once, and return when all have ended."""
    try:
        process.suspend()  # it starts no further child while they are counted
        tree = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    for each in tree:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    while not all(_has_ended(each) for each in tree):
        time.sleep(_POLL_S)


def _has_ended(process: psutil.Process) -> bool:
    """Say whether a process does nothing any more, though its parent may not have collected it yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _main() -> None:
    watched: psutil.Process | None = None
    for line in sys.stdin:
        try:
            watched = psutil.Process(int(line))
        except psutil.NoSuchProcess:
            watched = None
    if watched is None:
        return
    try:
        watched.send_signal(signal.SIGQUIT)  # both databases end by it, and clean up behind them
        watched.wait(_GRACE_S)
    except psutil.NoSuchProcess:
        return
    except psutil.TimeoutExpired:
        end_tree(watched)


if __name__ == "__main__":
    _main()
