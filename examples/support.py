"""Starts what a demo needs, without anything to install: a server in a process of its own, a worker in a thread."""

import logging
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from xdb_sdk import ClientOptions, Worker

START_LIMIT_S = 30
STOP_LIMIT_S = 15


@contextmanager
def running(app: Worker, database: Path) -> Iterator[ClientOptions]:
    """Run a server on an SQLite file, and a worker, both on free ports; give the options for a client of them.

    In production the two are started by `xdb server` and by any ASGI server, `uvicorn myapp.worker:app` for one.
    """
    logging.getLogger("xdb_sdk.worker").setLevel(logging.ERROR)  # the demos themselves tell of failed attempts
    with _running_worker(app) as worker_url, _running_server(database) as server_url:
        yield ClientOptions(server_url=server_url, worker_url=worker_url)


@contextmanager
def _running_server(database: Path) -> Iterator[str]:
    arguments = ["server", "--port", "0", "--database-url", f"sqlite:///{database}", "--log-level", "ERROR"]
    command = [sys.executable, "-m", "server_stub.cli", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = re.search(r"http://\S+", server.stdout.readline())
            if url is None:
                raise SystemExit("the server did not start; it says why above")
            yield url[0]
        finally:
            server.terminate()
            try:
                server.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                server.kill()


@contextmanager
def _running_worker(app: Worker) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="worker")
        thread.start()
        try:
            deadline = time.monotonic() + START_LIMIT_S
            while not server.started:
                if time.monotonic() > deadline or not thread.is_alive():
                    raise SystemExit("the worker did not start; it says why above")
                time.sleep(0.01)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(STOP_LIMIT_S)
