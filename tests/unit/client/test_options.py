from datetime import timedelta
from typing import Any

import pytest

from xdb_sdk._errors import InvalidArgumentError
from xdb_sdk.client import ClientOptions, ClientRetryPolicy


def test_local_default_is_this_machine() -> None:
    options = ClientOptions.local_default()

    assert (options.server_url, options.worker_url) == ("http://127.0.0.1:8801", "http://127.0.0.1:8802")
    assert options.api_timeout == timedelta(seconds=60)
    assert options.namespace == "default"


@pytest.mark.parametrize(
    "fields",
    [
        {"namespace": ""},
        {"namespace": "x" * 256},
        {"api_timeout": timedelta(0)},
        {"long_poll_api_max_wait_time": timedelta(seconds=-1)},
        {"max_batch_calls": 0},
        {"max_batch_bytes": 0},
    ],
    ids=str,
)
def test_client_options_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        ClientOptions(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_attempts": 0},
        {"backoff_coefficient": 0.5},
        {"initial_backoff": timedelta(seconds=-1)},
        {"max_backoff": timedelta(seconds=-1)},
        {"max_total_time": timedelta(seconds=-1)},
        {"max_total_time": timedelta(hours=1, microseconds=1)},
    ],
    ids=str,
)
def test_a_retry_policy_out_of_range_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        ClientRetryPolicy(**fields)


def test_a_policy_that_goes_on_for_longer_than_servers_remember_says_why_it_is_refused() -> None:
    with pytest.raises(
        InvalidArgumentError, match=r"max_total_time is 2:00:00; at most 1:00:00 .* carries it out again"
    ):
        ClientRetryPolicy(max_total_time=timedelta(hours=2))


def test_an_hour_of_repetitions_is_possible() -> None:
    assert ClientRetryPolicy(max_total_time=timedelta(hours=1)).max_total_time == timedelta(hours=1)
