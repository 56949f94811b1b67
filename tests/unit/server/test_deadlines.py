"""A client's call that the database keeps waiting is given up, and told whether it may have been applied."""

import asyncio
from typing import Any

import pytest

from server_stub.core.ports import CommitOutcomeUnknown, StoreUnavailable
from server_stub.engine.committer import Submission
from server_stub.engine.deadlines import Deadlines
from tests.support.virtual_time import VIRTUAL_TIME_BACKEND


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return VIRTUAL_TIME_BACKEND


@pytest.mark.parametrize("is_begun", [False, True])
async def test_submission_is_given_up_when_its_time_is_over(is_begun: bool) -> None:
    loop = asyncio.get_running_loop()
    submission: Submission[None] = Submission()
    submission.is_begun = is_begun

    Deadlines(10).watch(submission)
    [error] = await asyncio.gather(submission, return_exceptions=True)

    assert type(error) is (CommitOutcomeUnknown if is_begun else StoreUnavailable)
    assert 10 <= loop.time() <= 11


async def test_submission_that_is_done_in_time_is_left_alone() -> None:
    deadlines = Deadlines(10)
    first: Submission[int] = Submission()
    deadlines.watch(first)
    await asyncio.sleep(9.5)
    second: Submission[int] = Submission()
    deadlines.watch(second)

    first.set_result(1)
    await asyncio.sleep(9)
    second.set_result(2)
    await asyncio.sleep(60)

    assert (first.result(), second.result()) == (1, 2)
