"""The sign-up process of the design in both its forms, from the client through the server to the worker and back."""

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from types import ModuleType

import pytest

from examples.user_signup import process, process_with_schemas
from examples.user_signup.model import Form
from examples.user_signup.table import CREATE_TABLE
from server_stub.config import ServerSettings
from tests.support.databases import Database
from tests.support.system import System
from tests.support.virtual_time import VirtualClock
from xdb_sdk import ProcessStartOptions

DAY_MS = 24 * 3_600_000
UNHURRIED = ServerSettings(
    rescan_interval=timedelta(minutes=5),
    look_ahead=timedelta(minutes=10),
    recheck_interval=timedelta(minutes=5),
    upkeep_interval=timedelta(hours=1),
)
"""Looks at the database seldom, since nearly all of the day nothing happens."""


@pytest.fixture
async def system(database: Database) -> AsyncIterator[System]:
    async with System(database, UNHURRIED) as system:
        yield system


@pytest.mark.parametrize("form", [process, process_with_schemas], ids=["decorators", "schemas"])
async def test_user_signs_up_is_reminded_after_a_day_verifies_and_is_welcomed(
    system: System, form: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock: VirtualClock = system.clock
    began_at_ms = clock()
    sent: list[tuple[str, str, int]] = []
    monkeypatch.setattr(
        form, "send_email", lambda address, template: sent.append((address, template, clock() - began_at_ms))
    )
    system.sql(CREATE_TABLE.read_text().replace("TEXT PRIMARY KEY", "VARCHAR(255) PRIMARY KEY"))  # for MariaDB
    system.serve(form.UserSignupProcess)
    process_id = "user-signup-process-u1"
    filled_in = Form("ann@example.com", "Ann", "Berg")
    options = ProcessStartOptions(initial_upsert_data_attributes={"form": filled_in, "status": "waiting"})

    await system.client.start_object_process(process_id, form.UserSignupProcess, "u1", None, options)
    await asyncio.sleep(23 * 3_600)  # a wait for all of the day would ask the database thousands of times
    await system.client.wait_for_state_completion(process_id, form.VerifyState)
    answers = [await system.client.invoke_rpc(process_id, form.UserSignupProcess.verify, "email") for _ in range(2)]
    result = await system.client.wait_for_process_completion(process_id, str)
    answers.append(await system.client.invoke_rpc(process_id, form.UserSignupProcess.verify, "email"))

    assert answers == ["done", "already verified", "already verified"]
    assert result == "done"
    assert [(address, template) for address, template, _ in sent] == [
        ("ann@example.com", "verify"),
        ("ann@example.com", "reminder"),
        ("ann@example.com", "welcome"),
    ]
    assert [after_ms // DAY_MS for _, _, after_ms in sent] == [0, 1, 1]
    assert system.sql("SELECT status, source, form FROM user_sign_up WHERE user_id = ?", "u1") == [
        ("verified", "email", '{"email":"ann@example.com","first_name":"Ann","last_name":"Berg"}')
    ]
