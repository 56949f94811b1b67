"""Which database a URL names."""

import pytest

from server_stub.storage.opening import DatabaseKind, database_kind
from server_stub.storage.postgres_errors import address_of


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("sqlite:///xdb.db", DatabaseKind.SQLITE),
        ("postgresql://u@h/db", DatabaseKind.POSTGRESQL),
        ("postgresql+asyncpg://u@h/db", DatabaseKind.POSTGRESQL),
        ("mariadb://u@h/db", DatabaseKind.MYSQL),
        ("mysql+asyncmy://u@h/db", DatabaseKind.MYSQL),
    ],
)
def test_a_url_names_its_database_and_perhaps_the_driver_of_xdb(url: str, kind: DatabaseKind) -> None:
    assert database_kind(url) is kind


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("postgresql://user:p@ss@db.example:5433/orders", "db.example:5433"),
        ("postgresql://a:1,b:2/orders?user=u", "a:1,b:2"),
        ("postgresql:///orders?host=/run/postgresql", ""),
    ],
)
def test_an_address_has_hosts_and_ports_and_no_password(url: str, address: str) -> None:
    assert address_of(url) == address
