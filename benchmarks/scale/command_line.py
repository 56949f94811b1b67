"""The commands of `python -m benchmarks` that measure how xdb scales. Each prints one table."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from benchmarks.databases import Databases, own_postgres, postgres_beside
from benchmarks.scale.history import history_table, measure_history
from benchmarks.scale.idle import idle_table, measure_idle
from benchmarks.scale.memory import measure_memory, memory_table
from benchmarks.scale.postgres_counters import STATISTICS_SETTINGS
from benchmarks.scale.servers import measure_servers, servers_table

CommandT = TypeVar("CommandT", bound="Callable[..., Any] | click.Command")

_AT_LEAST_ONE = click.IntRange(1)
_url_option = click.option("--url", help="PostgreSQL server, by a database on it, instead of one of our own.")


def _count_option(name: str, default: int, purpose: str) -> Callable[[CommandT], CommandT]:
    return click.option(name, type=_AT_LEAST_ONE, default=default, show_default=True, help=purpose)


@contextmanager
def _room(url: str | None) -> Iterator[tuple[Databases, Path]]:
    """Give databases on a PostgreSQL server and a directory for logs."""
    with (
        own_postgres(STATISTICS_SETTINGS) if url is None else postgres_beside(url) as databases,
        tempfile.TemporaryDirectory(prefix="bench-scale-", ignore_cleanup_errors=True) as directory,
    ):
        yield databases, Path(directory)


@click.command()
@_url_option
@_count_option("--closed", 1_000_000, "Executions that have completed before.")
@_count_option("--waiting", 100_000, "Executions that wait for timers.")
@_count_option("--executions", 2000, "Executions that are run on each database in each round.")
@_count_option("--concurrency", 64, "Executions at a time.")
@_count_option("--rounds", 3, "How often each database has its turn; medians are printed.")
def history(url: str | None, closed: int, waiting: int, executions: int, concurrency: int, rounds: int) -> None:
    """Run the same load on empty tables and on full ones."""
    with _room(url) as (databases, directory):
        results = asyncio.run(
            measure_history(
                databases,
                directory,
                closed=closed,
                waiting=waiting,
                executions=executions,
                concurrency=concurrency,
                rounds=rounds,
            )
        )
    click.echo(history_table(results))


@click.command()
@_url_option
@_count_option("--servers", 3, "The largest number of servers.")
@_count_option("--executions", 6000, "Executions on each number of servers.")
@_count_option("--concurrency", 192, "Executions at a time, on all servers together.")
def servers(url: str | None, servers: int, executions: int, concurrency: int) -> None:
    """Run the same load on one, two and more servers."""
    with _room(url) as (databases, directory):
        loads = asyncio.run(
            measure_servers(databases, directory, most=servers, executions=executions, concurrency=concurrency)
        )
    click.echo(servers_table(loads))


@click.command()
@_url_option
@_count_option("--executions", 100_000, "Executions in all.")
@_count_option("--every", 10_000, "Executions between two looks at the memory.")
@_count_option("--concurrency", 64, "Executions at a time.")
def memory(url: str | None, executions: int, every: int, concurrency: int) -> None:
    """See whether a server grows with the executions that pass through it."""
    with _room(url) as (databases, directory):
        samples = asyncio.run(
            measure_memory(databases, directory, executions=executions, every=every, concurrency=concurrency)
        )
    click.echo(memory_table(samples))


@click.command()
@_url_option
@_count_option("--servers", 2, "The largest number of servers.")
@_count_option("--seconds", 60, "How long to count.")
def idle(url: str | None, servers: int, seconds: int) -> None:
    """Count what servers without work ask of the database."""
    with _room(url) as (databases, directory):
        found = asyncio.run(measure_idle(databases, directory, most=servers, duration_s=seconds))
    click.echo(idle_table(found, seconds))


COMMANDS = (history, idle, memory, servers)
