"""Limits that make no sense are refused where they are written."""

from datetime import timedelta
from typing import Any

import pytest

from xdb_sdk import InvalidArgumentError, WorkerOptions


@pytest.mark.parametrize(
    "options",
    [
        {"max_concurrent_calls": 0},
        {"max_threads": 0},
        {"max_calls_waiting_for_thread": -1},
        {"max_value_bytes": 0},
        {"max_answer_bytes": 0},
        {"max_call_bytes": 0},
        {"max_batch_bytes": 0},
        {"retry_after": timedelta(seconds=-1)},
        {"shutdown_grace": timedelta(seconds=-1)},
        {"blocked_loop_warning": timedelta(seconds=-1)},
    ],
    ids=lambda options: next(iter(options)),
)
def test_option_out_of_range_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        WorkerOptions(**options)
