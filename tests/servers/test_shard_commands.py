"""`xdb shard`: operators see who owns what, and take a shard away."""

import asyncio

import pytest
from click.testing import CliRunner, Result

from server_stub.cli import main
from tests.support.servers import Servers, eventually


async def run(servers: Servers, *arguments: str) -> Result:
    """Run a command, which has an event loop of its own, in a thread."""
    return await asyncio.to_thread(CliRunner().invoke, main, ["shard", *arguments, "--database-url", servers.url])


async def test_list_shows_each_shard_with_its_owner(servers: Servers) -> None:
    node = await servers.start(advertise_address="here.example:1")
    await eventually(lambda: len(node.shard_ids) == 16)

    shown = await run(servers, "list")

    lines = [line.split() for line in shown.output.splitlines()]
    assert [int(line[0]) for line in lines] == list(range(16))
    assert {line[-1] for line in lines} == {"here.example:1"}


async def test_stolen_shard_leaves_its_owner_within_a_beat_and_is_shared_out_anew(servers: Servers) -> None:
    node = await servers.start()
    await eventually(lambda: len(node.shard_ids) == 16)
    assert node.server._cluster is not None
    keeper = node.server._cluster.keeper

    stolen = await run(servers, "steal", "3")
    took_s = await eventually(lambda: keeper.range_of(3) == 3)

    assert (stolen.exit_code, stolen.output.split(";")[0]) == (0, "shard 3 is nobody's now")
    assert took_s < 1.0
    assert keeper.range_of(4) == 1


async def test_owner_that_was_robbed_gets_nothing_while_others_can_have_it(servers: Servers) -> None:
    robbed = await servers.start(advertise_address="stuck.example:1")
    other = await servers.start()
    await eventually(lambda: len(robbed.shard_ids) == len(other.shard_ids) == 8)
    shard_id = min(robbed.shard_ids)

    stolen = await run(servers, "steal", str(shard_id))
    await eventually(lambda: len(other.shard_ids) == 16)
    third = await servers.start()
    await eventually(lambda: len(third.shard_ids) == len(other.shard_ids) == 8)

    assert stolen.output.splitlines()[1] == "stuck.example:1 gets no shards until it is started anew"
    assert robbed.shard_ids == set()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("steal", "99"), "there is no shard 99"), (("list", "--num-shards", "4"), "16")],
    ids=["no-such-shard", "other-number-of-shards"],
)
async def test_wrong_command_is_one_clear_line(servers: Servers, arguments: tuple[str, ...], message: str) -> None:
    await servers.start()

    refused = await run(servers, *arguments)

    assert refused.exit_code != 0
    assert message in refused.output.splitlines()[-1]


def test_sqlite_has_no_shards_to_share() -> None:
    refused = CliRunner().invoke(main, ["shard", "list", "--database-url", "sqlite://"])

    assert refused.exit_code == 2
    assert "one server" in refused.output
