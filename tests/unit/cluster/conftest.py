"""Servers among others, on virtual time."""

from typing import Any

import pytest

from tests.support.virtual_time import VIRTUAL_TIME_BACKEND


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return VIRTUAL_TIME_BACKEND
