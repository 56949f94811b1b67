"""Import every module of a package and print what that did beside importing. Run as a script, for a fresh interpreter.

Printed are: connections, processes and threads, whoever opened them; files that a module of ours opened; environment
variables that a module of ours read. What libraries read at import is theirs.
"""

import importlib
import os
import pkgutil
import sys
import threading
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from types import FrameType
from unittest.mock import patch

ROOT = Path(__file__).parents[2].as_posix()
OURS = ("xdb_sdk", "server_stub")
IMPORT_MACHINERY = ("importlib._bootstrap", "importlib._bootstrap_external")
FORBIDDEN = {
    "os.posix_spawn",
    "os.system",
    "socket.bind",
    "socket.connect",
    "socket.getaddrinfo",
    "sqlite3.connect",
    "subprocess.Popen",
}

findings: list[str] = []


def culprit() -> str | None:
    """Name the module of ours that is responsible for what is happening, if one is.

    That is the nearest caller outside the standard library. The import machinery reads files on behalf of nobody.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module in IMPORT_MACHINERY:
            return None
        root = module.partition(".")[0]
        if root not in sys.stdlib_module_names:
            return module if root in OURS else None
        frame = frame.f_back
    return None


class WatchedEnvironment(MutableMapping[str, str]):
    """The environment, noting who reads it."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        self._environment = environment

    def __getitem__(self, name: str) -> str:
        if module := culprit():
            findings.append(f"{module} reads the variable {name}")
        return self._environment[name]

    def __setitem__(self, name: str, value: str) -> None:
        findings.append(f"{culprit()} sets the variable {name}")
        self._environment[name] = value

    def __delitem__(self, name: str) -> None:
        findings.append(f"{culprit()} deletes the variable {name}")
        del self._environment[name]

    def __iter__(self) -> Iterator[str]:
        if module := culprit():
            findings.append(f"{module} reads the environment")
        return iter(self._environment)

    def __len__(self) -> int:
        return len(self._environment)


def audit(event: str, args: tuple[object, ...]) -> None:
    """Note what the interpreter reports."""
    if event in FORBIDDEN:
        findings.append(f"{event} {args!r}")
    elif event == "open" and (module := culprit()):
        findings.append(f"{module} opens {args[0]!r}")


def main(package: str) -> None:
    """Import the modules of `package` one by one, in order of their names."""
    sys.path.insert(0, ROOT)
    sys.addaudithook(audit)
    with patch.object(os, "environ", WatchedEnvironment(os.environ)):
        module = importlib.import_module(package)
        for info in pkgutil.walk_packages(module.__path__, f"{package}."):
            if not info.name.endswith(".__main__"):  # a program, which runs when it is imported
                importlib.import_module(info.name)
    findings.extend(f"thread {thread.name} is running" for thread in threading.enumerate()[1:])
    print("\n".join(findings), end="\n" if findings else "")


if __name__ == "__main__":
    main(sys.argv[1])
