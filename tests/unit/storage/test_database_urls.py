"""Which database a URL names, and what is said of one that names none."""

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
    ("url", "form"),
    [("postgresql+psycopg://u:secret@h/db", "postgresql://"), ("mysql+pymysql://u:secret@h/db", "mysql://")],
)
def test_a_url_with_another_driver_is_refused_with_the_form_that_is_wanted(url: str, form: str) -> None:
    with pytest.raises(ValueError, match="names a driver that xdb does not use") as refusal:
        database_kind(url)

    assert f"write {form} in its place" in str(refusal.value)
    assert "secret" not in str(refusal.value)


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
