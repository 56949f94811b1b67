"""Where peers are installed, and how their measurements are had."""

import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measurement import Measurement, from_json
from benchmarks.workloads import Workload

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".bench-peers"
RUN_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Peer:
    """Another engine.

    Attributes:
        name: What it is called in tables.
        requirement: What pip installs into its environment.
        module: The module here that runs its workloads.
    """

    name: str
    requirement: str
    module: str

    def install(self) -> None:
        """Make its environment, unless that was done before for the same requirement."""
        stamp = self._environment / "requirement.txt"
        if stamp.exists() and stamp.read_text() == self.requirement:
            return
        print(f"installing {self.requirement} into {self._environment.relative_to(ROOT)}", file=sys.stderr)
        venv.create(self._environment, clear=True, with_pip=True)
        pip = [self._python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", self.requirement]
        subprocess.run(pip, check=True)
        stamp.write_text(self.requirement)

    def measure(self, workload: Workload, executions: int) -> Measurement:
        """Run a workload in its environment.

        Raises:
            RuntimeError: It failed; the text has what it wrote.
        """
        command = [self._python, "-m", self.module, workload, str(executions)]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
        if run.returncode != 0:
            raise RuntimeError(f"{self.name} failed on {workload}:\n{run.stdout}{run.stderr}")
        return from_json(run.stdout.splitlines()[-1])

    @property
    def _environment(self) -> Path:
        return ENVIRONMENTS / self.name

    @property
    def _python(self) -> str:
        return str(self._environment / "bin" / "python")


PEERS = (Peer("dbos", "dbos>=3.4,<4", "benchmarks.peers.dbos_workloads"),)
