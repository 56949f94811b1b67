"""Run benchmarks and print a table: python -m benchmarks --help."""

import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.databases import DatabaseKind, Databases, kind_of, own_postgres, postgres_beside, sqlite_databases
from benchmarks.floor import measure_sqlite_floor
from benchmarks.measurement import Measurement, median_of
from benchmarks.peers.environment import PEERS, Peer
from benchmarks.postgres_floor import install_schema, measure_postgres_floor
from benchmarks.report import comparison, table
from benchmarks.scale.command_line import COMMANDS
from benchmarks.workloads import FULL_SIZES, QUICK_SIZES, Workload, measure
from benchmarks.xdb_engine import running_engine

OURS = "xdb"


@click.group(invoke_without_command=True)
@click.option(
    "--database",
    "kind_name",
    type=click.Choice([kind.value for kind in DatabaseKind]),
    default=DatabaseKind.SQLITE.value,
    show_default=True,
    help="A new one for each run; for PostgreSQL on a server of the benchmark's own.",
)
@click.option("--url", help="Database of the server instead; on its server the peers get new ones.")
@click.option(
    "--workload",
    "workloads",
    multiple=True,
    type=click.Choice([workload.value for workload in Workload]),
    default=[workload.value for workload in Workload],
    help="Run this one only; may be repeated.",
)
@click.option("--repeat", type=click.IntRange(1), default=1, show_default=True, help="Runs; medians are printed.")
@click.option("--quick", is_flag=True, help="Few executions: shows that everything works, measures nothing.")
@click.option("--peers", "with_peers", is_flag=True, help="Run other engines too, in turns with ours.")
@click.option(
    "--engine",
    "engines",
    multiple=True,
    type=click.Choice([OURS, *(peer.name for peer in PEERS)]),
    help="Run this one only; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print every run as a line of JSON instead of tables.")
@click.pass_context
def main(
    context: click.Context,
    kind_name: str,
    url: str | None,
    workloads: Sequence[str],
    repeat: int,
    quick: bool,
    with_peers: bool,
    engines: Sequence[str],
    as_json: bool,
) -> None:
    """Measure xdb: a server, a worker and a client, each its own process, with durable commits.

    Without a command the workloads are run that other engines are compared by; the commands measure how xdb scales.
    """
    if context.invoked_subcommand is not None:
        _refuse_options(context)
        return
    kind = DatabaseKind(kind_name) if url is None else _kind_of(url)
    peers = _chosen_peers(engines, kind) if engines else [peer for peer in PEERS if with_peers and peer.is_beside(kind)]
    for peer in peers:
        peer.install()
    sizes = QUICK_SIZES if quick else FULL_SIZES
    runs = []
    with _databases(kind, url) as databases:
        engines_in_turn = _Engines(databases, url, not engines or OURS in engines, peers)
        for workload in [Workload(name) for _ in range(repeat) for name in workloads]:
            for run in engines_in_turn.measure(workload, sizes[workload]):
                click.echo(f"{run.workload} on {run.engine}: {run.elapsed_s:.1f} s", err=True)
                runs.append(run)
                if as_json:
                    click.echo(run.to_json())
    if not as_json:
        _print_tables(_medians(runs), [peer.name for peer in peers])


def _refuse_options(context: click.Context) -> None:
    """Say that options before a command are not for it."""
    for parameter in context.command.params:
        if context.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{parameter.opts[0]} is not for {context.invoked_subcommand}; see its --help")


def _kind_of(url: str) -> DatabaseKind:
    try:
        return kind_of(url)
    except ValueError:
        known = ", ".join(f"{kind}://" for kind in DatabaseKind)
        raise click.UsageError(f"--url begins with one of {known}, and not as {url!r}") from None


def _chosen_peers(names: Sequence[str], kind: DatabaseKind) -> list[Peer]:
    chosen = [peer for peer in PEERS if peer.name in names]
    for peer in chosen:
        if not peer.is_beside(kind):
            raise click.UsageError(f"{peer.name} does not run on {kind}; add --database {min(peer.databases)}")
    return chosen


def _databases(kind: DatabaseKind, url: str | None) -> AbstractContextManager[Databases]:
    if kind is DatabaseKind.SQLITE:
        return sqlite_databases()
    return own_postgres() if url is None else postgres_beside(url)


@dataclass(frozen=True, slots=True)
class _Engines:
    """What is measured in turns.

    Attributes:
        databases: Gives each run its database.
        url: The database of ours instead; None for a new one.
        with_ours: Whether xdb is measured.
        peers: Which others are.
    """

    databases: Databases
    url: str | None
    with_ours: bool
    peers: Sequence[Peer]

    def measure(self, workload: Workload, executions: int) -> Iterator[Measurement]:
        """Run one workload on everything, one after the other, so that all see the machine in the same mood."""
        if self.with_ours:
            yield from self._measure_ours(workload, executions)
        for peer in self.peers:
            if workload in peer.workloads:
                yield peer.measure(workload, executions, self.databases)

    def _measure_ours(self, workload: Workload, executions: int) -> Iterator[Measurement]:
        with tempfile.TemporaryDirectory(prefix="bench-xdb-", ignore_cleanup_errors=True) as name:
            with self.databases.new() if self.url is None else nullcontext(self.url) as url:
                ours = asyncio.run(_measure_xdb(url, self.databases, Path(name), workload, executions))
            yield ours
            if workload is Workload.CHAIN:
                yield self._measure_floor(Path(name), executions, _events_per_transaction(ours))

    def _measure_floor(self, directory: Path, executions: int, batch_size: int) -> Measurement:
        if self.databases.kind is DatabaseKind.SQLITE:
            return measure_sqlite_floor(directory, executions, batch_size)
        with self.databases.new() as url:
            asyncio.run(install_schema(url))
            return measure_postgres_floor(url, executions, batch_size, self.databases.cpu_s)


def _events_per_transaction(measurement: Measurement) -> int:
    return round(measurement.counts["events"] / measurement.counts["transactions"])


async def _measure_xdb(
    url: str, databases: Databases, directory: Path, workload: Workload, executions: int
) -> Measurement:
    async with running_engine(url, directory) as engine:
        return await measure(engine, workload, executions, databases.cpu_s)


def _medians(runs: Sequence[Measurement]) -> list[Measurement]:
    """Unite runs of the same workload on the same engine, in the order of their first ones."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for run in runs:
        groups.setdefault((run.workload, run.engine), []).append(run)
    return [median_of(group) for group in groups.values()]


def _print_tables(measurements: Sequence[Measurement], peers: Sequence[str]) -> None:
    click.echo(table(measurements))
    by_engine: Mapping[str, list[Measurement]] = {
        engine: [measurement for measurement in measurements if measurement.engine == engine]
        for engine in (OURS, *peers)
    }
    if peers and by_engine[OURS]:
        click.echo("\n" + comparison(by_engine[OURS], [by_engine[peer] for peer in peers]))


for command in COMMANDS:
    main.add_command(command)


if __name__ == "__main__":
    main()
