"""The reference is complete: nothing is missing in it, and nothing is in it that does not exist."""

import re
from collections import Counter
from pathlib import Path

import pytest

import xdb_sdk
from server_stub.api.operations import OPERATIONS
from tests.docs.pages import PAGES, ROOT, name_of
from xdb_sdk import ErrorSubType, XdbError, protocol

REFERENCE = ROOT / "docs" / "reference"


def public_error_codes() -> set[str]:
    exported = (getattr(xdb_sdk, name) for name in xdb_sdk.__all__)
    return {each.code for each in exported if isinstance(each, type) and issubclass(each, XdbError)}


def test_every_error_code_has_one_entry_and_every_entry_is_a_code() -> None:
    entries = re.findall(r"^### (\w+)$", (REFERENCE / "errors.md").read_text(), re.MULTILINE)

    assert Counter(entries) == Counter([*public_error_codes(), *ErrorSubType])


def test_every_entry_of_an_error_says_something() -> None:
    text = (REFERENCE / "errors.md").read_text()

    assert re.findall(r"^### (\w+)\n+(?=#|\Z)", text, re.MULTILINE) == []


def test_every_public_name_of_the_sdk_is_in_the_reference_once() -> None:
    text = "\n".join(page.read_text() for page in REFERENCE.glob("*.md"))
    described = re.findall(r"^::: xdb_sdk\.(\w+)$", text, re.MULTILINE)

    assert Counter(name for name in described if not name.startswith("_")) == Counter(xdb_sdk.__all__)


def test_http_page_lists_every_operation_and_every_path() -> None:
    text = (REFERENCE / "http-api.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)
    worker_paths = {
        protocol.WAIT_UNTIL_PATH,
        protocol.EXECUTE_PATH,
        protocol.RPC_PATH,
        protocol.PROCESS_CLOSED_PATH,
        protocol.WORKER_BATCH_PATH,
    }

    assert Counter(rows) == Counter([*OPERATIONS, *worker_paths])
    assert f"{protocol.SERVICE_PREFIX}<operation>" in text
    assert protocol.SERVICE_BATCH_PATH in text


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_local_links_lead_to_files_of_the_repository(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())

    assert [target for target in targets if not (page.parent / target).exists()] == []
