"""Servers that do only a part of the work, and hear of each other's by polls alone (D.6, D.9)."""

import asyncio
from collections.abc import Callable
from statistics import median
from time import monotonic

import pytest

from examples.user_signup.model import Form
from examples.user_signup.process import SubmitState, UserSignupProcess
from examples.user_signup.table import CREATE_TABLE
from examples.user_signup.worker import registry as signup_registry
from tests.faults.cluster import Cluster, eventually
from tests.faults.load import Load
from tests.faults.processes import CREATE_LEDGERS, Ledger, Walker
from tests.simulation.processes import Mailbox
from xdb_sdk import ProcessStartOptions, QueueMessage, UnavailableError

NewCluster = Callable[..., Cluster]

STARTS = 5
PROCESSES = 40
LONGEST_WAIT_S = 1.5


async def test_api_server_alone_accepts_work_that_begins_when_an_async_server_joins(new_cluster: NewCluster) -> None:
    with new_cluster(servers=0) as cluster:
        accepting = cluster.add_server("--roles", "api")
        cluster.wait_until_ready()
        async with cluster.client(accepting) as client:
            await client.start_process("walk", Walker, 0.0)
            await client.start_process("mailbox", Mailbox)
            for value in ("hello", "stop"):
                message = QueueMessage(queue=Mailbox.inbox, value=value, dedup_id=value)
                await client.publish_messages("mailbox", Mailbox, [message])
            assert accepting.owned_shards() == set()

            cluster.add_server("--roles", "async")

            assert await client.wait_for_process_completion("walk", int) == 1
            await client.wait_for_process_completion("mailbox")
            received = await client.get_data_attributes("mailbox", Mailbox)
        cluster.wait_until_ready()

    assert received == {"received": ["hello", "stop"]}
    cluster.check_nothing_is_left()
    cluster.check_logs()


async def test_server_without_the_role_api_sends_clients_to_another(new_cluster: NewCluster) -> None:
    with new_cluster(servers=0) as cluster:
        working = cluster.add_server("--roles", "async")
        cluster.wait_until_ready()
        async with cluster.client(working) as client:
            with pytest.raises(UnavailableError, match="has not the role api"):
                await client.start_process("walk", Walker, 0.0)
        assert working.get("/readyz")[0] == 200

    cluster.check_logs()


async def test_work_of_an_api_server_begins_soon_though_no_notification_says_so(new_cluster: NewCluster) -> None:
    waits_s: list[float] = []

    with new_cluster("--notify", "false", servers=0) as cluster:
        accepting = cluster.add_server("--roles", "api")
        cluster.add_server("--roles", "async")
        cluster.wait_until_ready()
        await eventually(lambda: len(cluster.servers[1].owned_shards()) == 16)
        async with cluster.client(accepting) as client:
            for number in range(STARTS):
                await asyncio.sleep(1)  # until the server that works looks as seldom as it ever does
                began_s = monotonic()
                await client.start_process(f"walk-{number}", Walker, 0.0)
                await eventually(lambda: len(cluster.traces()) > 2 * len(waits_s))
                waits_s.append(monotonic() - began_s)

    print(f"waits for a poll: median {median(waits_s):.3f} s, longest {max(waits_s):.3f} s")
    assert median(waits_s) < LONGEST_WAIT_S
    cluster.check_logs()


async def test_work_that_a_long_transaction_commits_late_is_found_though_younger_work_was_found_before(
    new_cluster: NewCluster,
) -> None:
    initial = ProcessStartOptions(initial_upsert_data_attributes={Ledger.total: 0})

    with new_cluster("--notify", "false", "--lock-timeout", "30s", servers=0) as cluster:
        first, second = cluster.add_server("--roles", "api"), cluster.add_server("--roles", "api")
        cluster.add_server("--roles", "async")
        cluster.wait_until_ready()
        cluster.sql(CREATE_LEDGERS)
        cluster.sql("INSERT INTO ledgers (id, total) VALUES ('early', 0)")
        async with cluster.client(first) as slow, cluster.client(second) as quick:
            async with cluster.transaction() as execute:
                await execute("UPDATE ledgers SET total = 0 WHERE id = 'early'")
                early = asyncio.create_task(slow.start_object_process("early", Ledger, "early", 1, initial))
                await cluster.until_lock_waiter()
                await quick.start_object_process("late", Ledger, "late", 1)
                await quick.wait_for_process_completion("late", int)
                assert not early.done()
            await early
            await slow.wait_for_process_completion("early", int)

    cluster.check_nothing_is_left()
    cluster.check_logs()


async def test_signup_works_over_three_servers_that_part_the_roles(new_cluster: NewCluster) -> None:
    process_id = "user-signup-process-anna"
    form = Form(email="anna@example.com", first_name="Anna", last_name="Berg")
    initial = {UserSignupProcess.form: form, UserSignupProcess.status: "waiting"}

    with new_cluster(servers=0, worker_app="examples.user_signup.worker:app") as cluster:
        first, *_ = [cluster.add_server("--roles", role) for role in ("api", "async", "async,system")]
        cluster.wait_until_ready()
        cluster.sql(CREATE_TABLE.read_text().replace("TEXT PRIMARY KEY", "VARCHAR(255) PRIMARY KEY"))  # for MariaDB
        async with cluster.client(first, of=signup_registry) as client:
            options = ProcessStartOptions(initial_upsert_data_attributes=initial)
            await client.start_object_process(process_id, UserSignupProcess, "anna", None, options)
            await client.wait_for_state_completion(process_id, SubmitState)
            answers = [await client.invoke_rpc(process_id, UserSignupProcess.verify, "email") for _ in range(2)]
            output = await client.wait_for_process_completion(process_id, str)
        rows = cluster.sql("SELECT user_id, form, status, source FROM user_sign_up")

    assert answers == ["done", "already verified"]
    assert output == "done"
    assert rows == [
        ("anna", '{"email":"anna@example.com","first_name":"Anna","last_name":"Berg"}', "verified", "email")
    ]
    cluster.check_nothing_is_left()
    cluster.check_logs()


async def test_load_is_borne_by_servers_that_part_the_roles_and_have_two_connections(new_cluster: NewCluster) -> None:
    async def work(load: Load) -> None:
        while load.completed < PROCESSES:
            await load.progress()

    with new_cluster("--max-connections", "2", servers=0) as cluster:
        for roles in ("api", "async", "async,system", "api,async"):
            cluster.add_server("--roles", roles)
        cluster.wait_until_ready()
        cluster.sql(CREATE_LEDGERS)
        load = Load(cluster, seed=9)
        await load.run(work)

    load.check_ledgers()
    cluster.check_nothing_is_left()
    cluster.check_logs()
