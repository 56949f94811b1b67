"""A server is ready only while it can keep its shards."""

import pytest

from server_stub.core.ports import StoreUnavailable
from tests.support.servers import Servers, eventually


async def test_server_whose_keeper_fails_is_not_ready_until_it_works_again(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await servers.start()
    assert node.server._cluster is not None
    keeper = node.server._cluster.keeper
    await node.server.check_ready()

    async def fail() -> None:
        raise KeyError(3)

    with monkeypatch.context() as broken:
        broken.setattr(keeper, "_turn", fail)
        await eventually(lambda: keeper.is_down)
        with pytest.raises(StoreUnavailable, match="that it lives"):
            await node.server.check_ready()
    await eventually(lambda: not keeper.is_down)

    await node.server.check_ready()
