"""What the modules of all peers do when they are run: take arguments, measure, and print one `Measurement`."""

import argparse
import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import psutil

from benchmarks.commands import cpu_s
from benchmarks.measurement import Measurement
from benchmarks.workloads import Engine, Workload, measure


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a peer is asked to do.

    Attributes:
        workload: What to run.
        executions: How many executions.
        database_url: A new, empty database; None for peers with a storage of their own.
        database_process: The main process of the database's server, if its CPU time can be counted.
    """

    workload: Workload
    executions: int
    database_url: str | None
    database_process: int | None


def main(running_engine: Callable[[Arguments], AbstractAsyncContextManager[Engine]]) -> None:
    """Measure one workload on an engine that runs meanwhile, and print the measurement as the last line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("workload", type=Workload)
    parser.add_argument("executions", type=int)
    parser.add_argument("--database-url")
    parser.add_argument("--database-process", type=int)
    arguments = Arguments(**vars(parser.parse_args()))
    print(asyncio.run(_measure(running_engine, arguments)).to_json())


async def _measure(
    running_engine: Callable[[Arguments], AbstractAsyncContextManager[Engine]], arguments: Arguments
) -> Measurement:
    database = psutil.Process(arguments.database_process) if arguments.database_process else None
    async with running_engine(arguments) as engine:
        return await measure(
            engine, arguments.workload, arguments.executions, (lambda: cpu_s(database)) if database else None
        )
