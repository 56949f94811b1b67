"""The commands of `python -m benchmarks` that measure how xdb scales. Each prints one table."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from benchmarks.databases import Databases, own_postgres, postgres_beside
from benchmarks.scale.burst import burst_table, measure_burst
from benchmarks.scale.calls import calls_table, measure_calls
from benchmarks.scale.history import history_table, measure_history
from benchmarks.scale.idle import idle_table, measure_idle
from benchmarks.scale.memory import measure_memory, memory_table
from benchmarks.scale.postgres_counters import STATISTICS_SETTINGS
from benchmarks.scale.profile import (
    functions_table,
    measure_profiles,
    profile_table,
    sample_server,
    statements_table,
)
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
@_count_option("--starts", 20_000, "How many.")
def burst(url: str | None, starts: int) -> None:
    """Send many starts at once, and see what becomes of them."""
    with _room(url) as (databases, directory):
        results = asyncio.run(measure_burst(databases, directory, starts=starts))
    click.echo(burst_table(results))


@click.command()
@_url_option
@_count_option("--calls", 1000, "How many.")
def calls(url: str | None, calls: int) -> None:
    """Keep many calls in flight at one worker."""
    with _room(url) as (databases, directory):
        results = asyncio.run(measure_calls(databases, directory, calls=calls))
    click.echo(calls_table(results))


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
@click.option(
    "--concurrency",
    "concurrencies",
    multiple=True,
    type=_AT_LEAST_ONE,
    default=(1, 64, 512),
    show_default=True,
    help="Executions at a time; may be repeated.",
)
@_count_option("--executions", 6000, "The most executions at each concurrency.")
@_count_option("--servers", 1, "How many servers.")
@_count_option("--functions", 15, "How many functions of the server are shown, if py-spy is installed.")
def profile(url: str | None, concurrencies: Sequence[int], executions: int, servers: int, functions: int) -> None:
    """Show where the time of the chain goes, beside the floor."""
    with _room(url) as (databases, directory):
        profiles = asyncio.run(
            measure_profiles(databases, directory, concurrencies=concurrencies, executions=executions, servers=servers)
        )
        middle = sorted(concurrencies)[len(concurrencies) // 2]
        shares = asyncio.run(sample_server(databases, directory, concurrency=middle, executions=executions))
    click.echo(profile_table(profiles))
    for each in profiles:
        click.echo(f"\nstatements at a concurrency of {each.concurrency}\n{statements_table(each)}")
    if not shares:
        click.echo("\nfor the functions of the server: pip install py-spy")
        return
    click.echo(f"\nfunctions of the server at a concurrency of {middle}\n{functions_table(shares[:functions])}")


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


COMMANDS = (burst, calls, history, idle, memory, profile, servers)
