"""Delivery's unit tests run on virtual time."""

import pytest

from tests.support.virtual_time import VIRTUAL_TIME_BACKEND


@pytest.fixture
def anyio_backend() -> object:
    return VIRTUAL_TIME_BACKEND
