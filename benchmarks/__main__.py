"""Run benchmarks and print a table: python -m benchmarks --help."""

import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from benchmarks.floor import measure_floor
from benchmarks.measurement import Measurement, median_of
from benchmarks.peers.environment import PEERS, Peer
from benchmarks.report import comparison, table
from benchmarks.workloads import FULL_SIZES, QUICK_SIZES, Workload, measure
from benchmarks.xdb_engine import running_engine


@click.command()
@click.option("--url", help="Database of the server; by default a new SQLite file for each run.")
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
@click.option("--json", "as_json", is_flag=True, help="Print every run as a line of JSON instead of tables.")
def main(url: str | None, workloads: Sequence[str], repeat: int, quick: bool, with_peers: bool, as_json: bool) -> None:
    """Measure xdb: a server, a worker and a client, each its own process, with durable commits."""
    peers = PEERS if with_peers else ()
    for peer in peers:
        peer.install()
    sizes = QUICK_SIZES if quick else FULL_SIZES
    runs = []
    for _ in range(repeat):
        for workload in map(Workload, workloads):
            for run in _measure_all(url, workload, sizes[workload], peers):
                click.echo(f"{run.workload} on {run.engine}: {run.elapsed_s:.1f} s", err=True)
                runs.append(run)
    if as_json:
        click.echo("\n".join(run.to_json() for run in runs))
    else:
        _print_tables(_medians(runs), [peer.name for peer in peers])


def _measure_all(url: str | None, workload: Workload, executions: int, peers: Sequence[Peer]) -> Iterator[Measurement]:
    """Run one workload on everything, one after the other, so that all see the machine in the same mood."""
    with tempfile.TemporaryDirectory(prefix="bench-xdb-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        ours = asyncio.run(_measure_xdb(url or f"sqlite:///{directory / 'xdb.db'}", directory, workload, executions))
        yield ours
        if workload is Workload.CHAIN:
            batch_size = round(ours.counts["events"] / ours.counts["transactions"])
            yield measure_floor(directory, executions, batch_size)
    for peer in peers:
        yield peer.measure(workload, executions)


async def _measure_xdb(url: str, directory: Path, workload: Workload, executions: int) -> Measurement:
    async with running_engine(url, directory) as engine:
        return await measure(engine, workload, executions)


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
        for engine in ("xdb", *peers)
    }
    for peer in peers:
        click.echo("\n" + comparison(by_engine["xdb"], by_engine[peer]))


if __name__ == "__main__":
    main()
