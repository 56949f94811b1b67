"""Who can reach a server and a worker: this machine alone, unless they are told otherwise."""

from ipaddress import ip_address
from pathlib import Path

import httpx
import psutil
import pytest

from tests.contract.cli.conftest import GREETER
from tests.contract.service_api.requests import REQUESTS, path_of
from tests.support.real_processes import RunningCommand, free_port

WARNING = "other machines may reach this port, and whoever does is trusted"


def command(name: str, *arguments: str, directory: Path) -> RunningCommand:
    """Run a server or a worker on a free port."""
    if name == "worker":
        return RunningCommand(name, GREETER, "--port", str(free_port()), *arguments, directory=directory)
    return RunningCommand(name, "--port", "0", *arguments, directory=directory)


def addresses_of(running: RunningCommand) -> set[str]:
    """Give the addresses that a process listens on."""
    connections = psutil.Process(running.pid).net_connections("all")
    return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}


@pytest.mark.parametrize("name", ["server", "worker"])
def test_it_is_reached_from_this_machine_alone(name: str, tmp_path: Path) -> None:
    with command(name, directory=tmp_path) as running:
        addresses = addresses_of(running)

    assert len(addresses) == 1
    assert all(ip_address(address).is_loopback for address in addresses)
    assert WARNING not in running.log_file.read_text()


@pytest.mark.parametrize("name", ["server", "worker"])
def test_log_says_when_others_may_reach_it(name: str, tmp_path: Path) -> None:
    with command(name, "--host", "0.0.0.0", directory=tmp_path) as running:
        addresses = addresses_of(running)

    assert addresses == {"0.0.0.0"}
    assert f"{WARNING} address=0.0.0.0" in running.log_file.read_text()


def test_server_with_a_list_of_worker_urls_takes_no_others(tmp_path: Path) -> None:
    with command("server", "--allowed-worker-urls", "http://10.0.0.7:8802", directory=tmp_path) as running:
        refused = httpx.post(running.url + path_of("start"), json=REQUESTS["start"], timeout=30)

    assert refused.status_code == 400
    assert "its setting allowed_worker_urls says which" in refused.json()["details"]
