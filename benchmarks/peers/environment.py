"""Where peers are installed, and how their measurements are had."""

import json
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from benchmarks.databases import DatabaseKind, Databases
from benchmarks.measurement import Measurement, from_json
from benchmarks.workloads import Workload

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".bench-peers"
RUN_TIMEOUT_S = 600.0
SHARED_REQUIREMENTS = ("psutil>=6",)

ALL_WORKLOADS = frozenset(Workload)
WITHOUT_KILLS = ALL_WORKLOADS - {Workload.SERVER_KILL, Workload.WORKER_KILL}


@dataclass(frozen=True, slots=True)
class Peer:
    """Another engine.

    Attributes:
        name: What it is called in tables.
        requirements: What pip installs into its environment.
        module: The module here that runs its workloads.
        databases: Where it keeps its data; empty if it has a storage of its own, which is measured beside any.
        npm_packages: What npm installs into its environment.
        workloads: What it is measured on.
    """

    name: str
    requirements: Sequence[str]
    module: str
    databases: frozenset[DatabaseKind]
    npm_packages: Sequence[str] = ()
    workloads: frozenset[Workload] = ALL_WORKLOADS

    def is_beside(self, kind: DatabaseKind) -> bool:
        """Say whether it is measured when ours runs on that database."""
        return not self.databases or kind in self.databases

    def install(self) -> None:
        """Make its environment, unless that was done before for the same requirements.

        Raises:
            RuntimeError: It needs npm, and there is none.
        """
        stamp = self._environment / "requirements.json"
        wanted = json.dumps([self._pip_requirements, self.npm_packages])
        if stamp.exists() and stamp.read_text() == wanted:
            return
        print(f"installing {self.name} into {self._environment.relative_to(ROOT)}", file=sys.stderr)
        venv.create(self._environment, clear=True, with_pip=True)
        pip = [self._python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *self._pip_requirements], check=True)
        if self.npm_packages:
            self._install_npm_packages()
        stamp.write_text(wanted)

    def _install_npm_packages(self) -> None:
        npm = shutil.which("npm")
        if npm is None:
            raise RuntimeError(
                f"{self.name} comes as an npm package: install Node.js with npm, or leave it out by --engine"
            )
        # No scripts: that of the one package here only reports the installation to a service for statistics.
        install = [npm, "install", "--silent", "--ignore-scripts", "--prefix", str(self._environment)]
        subprocess.run([*install, *self.npm_packages], check=True)

    def measure(self, workload: Workload, executions: int, databases: Databases) -> Measurement:
        """Run a workload in its environment.

        Raises:
            RuntimeError: It failed; the text has what it wrote.
        """
        with databases.new() if self.databases else nullcontext() as url:
            command = [self._python, "-m", self.module, workload, str(executions)]
            if url is not None:
                command += ["--database-url", url]
            if url is not None and databases.server_process_id is not None:
                command += ["--database-process", str(databases.server_process_id)]
            run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
        if run.returncode != 0:
            raise RuntimeError(f"{self.name} failed on {workload}:\n{run.stdout}{run.stderr}")
        return from_json(run.stdout.splitlines()[-1])

    @property
    def _pip_requirements(self) -> list[str]:
        return [*self.requirements, *SHARED_REQUIREMENTS]

    @property
    def _environment(self) -> Path:
        return ENVIRONMENTS / self.name

    @property
    def _python(self) -> str:
        return str(self._environment / "bin" / "python")


PEERS = (
    Peer(
        "dbos",
        requirements=("dbos>=3.4,<4",),
        module="benchmarks.peers.dbos_workloads",
        databases=frozenset({DatabaseKind.SQLITE, DatabaseKind.POSTGRESQL}),
    ),
    Peer(
        "restate",
        requirements=("restate-sdk>=1.3,<2", "hypercorn>=0.18", "aiohttp>=3.11"),
        module="benchmarks.peers.restate_workloads",
        databases=frozenset(),
        npm_packages=("@restatedev/restate-server@1.7",),
    ),
    Peer(
        "absurd",
        requirements=("absurd-sdk==0.5.1", "absurdctl==0.5.1"),
        module="benchmarks.peers.absurd_workloads",
        databases=frozenset({DatabaseKind.POSTGRESQL}),
        workloads=WITHOUT_KILLS,
    ),
)
