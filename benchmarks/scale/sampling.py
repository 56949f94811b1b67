"""In which functions a Python process spends its CPU time, by py-spy if it is installed."""

import asyncio
import signal
import sysconfig
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

RATE_HZ = 200
END_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class FunctionShare:
    """A function, and in which parts of all samples it ran itself, and it or something that it called."""

    name: str
    own: float
    with_callees: float


def shares_of(lines: Iterable[str]) -> list[FunctionShare]:
    """Read samples, the functions that took most themselves first.

    Args:
        lines: Each has a stack, outermost function first, separated by semicolons, then a space and how often it was
            seen.
    """
    own: Counter[str] = Counter()
    with_callees: Counter[str] = Counter()
    for line in lines:
        stack, _, seen = line.rpartition(" ")
        functions = stack.split(";")
        own[functions[-1]] += int(seen)
        with_callees.update(dict.fromkeys(functions, int(seen)))
    total = own.total()
    return [FunctionShare(name, own[name] / total, with_callees[name] / total) for name, _ in own.most_common()]


@asynccontextmanager
async def sampled(process_id: int, path: Path) -> AsyncIterator[Callable[[], Sequence[FunctionShare]]]:
    """Sample a process during the `async with`.

    Args:
        process_id: Which process.
        path: A file that the samples are written to.

    Returns:
        After the `async with`, gives what was found; nothing without py-spy.
    """
    program = Path(sysconfig.get_path("scripts")) / "py-spy"
    if not program.exists():
        yield list
        return
    arguments = ["record", "--pid", str(process_id), "--rate", str(RATE_HZ), "--nonblocking", "--format", "raw"]
    spy = await asyncio.create_subprocess_exec(
        program,
        *arguments,
        "--output",
        path,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield lambda: shares_of(path.read_text().splitlines())
    finally:
        if spy.returncode is None:
            spy.send_signal(signal.SIGINT)  # upon which it writes what it has
        async with asyncio.timeout(END_TIMEOUT_S):
            await spy.wait()
