"""The first file of a project works where nothing of the repository is: it needs the installed packages only."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.real_processes import RunningCommand, free_port

FILE = Path(__file__).parents[2] / "examples" / "first_file" / "greeting.py"
GREET = "import greeting, sys; print(greeting.greet('Ada', greeting.ClientOptions(server_url={!r}, worker_url={!r})))"


def test_copied_file_is_served_by_the_worker_command_and_greets(tmp_path: Path) -> None:
    shutil.copy(FILE, tmp_path)
    server_port, worker_port = str(free_port()), str(free_port())

    with (
        RunningCommand("server", "--port", server_port, directory=tmp_path) as server,
        RunningCommand("worker", "greeting:app", "--port", worker_port, directory=tmp_path) as worker,
    ):
        finished = subprocess.run(
            [sys.executable, "-c", GREET.format(server.url, worker.url)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert (finished.returncode, finished.stderr, finished.stdout) == (0, "", "Hello, Ada!\n")
