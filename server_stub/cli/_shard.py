"""`xdb shard`."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click

from server_stub.cli._settings import load, setting_options
from server_stub.config import ServerSettings

if TYPE_CHECKING:
    from server_stub.core.cluster import ClusterView, Coordinator, Member

_SETTINGS = ("database_url", "num_shards", "member_timeout")


@click.group()
def shard() -> None:
    """Show and move the shards that servers on PostgreSQL, MySQL or MariaDB share."""


@shard.command(name="list")
@setting_options(*_SETTINGS)
def list_(**arguments: str | None) -> None:
    """Show each shard, who owns it, and for how long if the owner does not renew its lease."""
    settings = load(arguments).settings
    view = _run(settings, lambda coordinator: _look(coordinator, settings))
    addresses = {member.member_id: member.address for member in view.members}
    for each in sorted(view.shards, key=lambda each: each.shard_id):
        owner = "nobody" if each.owner_id is None else addresses.get(each.owner_id, f"{each.owner_id} (gone)")
        lease_left_s = max(each.lease_until_ms - view.now_ms, 0) / 1_000
        click.echo(f"{each.shard_id:>4}  range {each.range_id:<6}  lease {lease_left_s:>5.1f}s  {owner}")


@shard.command()
@click.argument("shard_id", metavar="SHARD", type=int)
@setting_options(*_SETTINGS)
def steal(shard_id: int, **arguments: str | None) -> None:
    """Take a shard from its owner, though its lease runs, so that the servers share it out anew.

    For an owner that says that it lives and does not work. It stops at its next heartbeat, and what it does with the
    shard until then is refused once another server has begun with it. If there are other servers that take shards,
    the owner is drained besides: it gives up its other shards too, and gets none until it is started anew.
    """
    settings = load(arguments).settings
    drained = _run(settings, lambda coordinator: _steal(coordinator, settings, shard_id))
    click.echo(f"shard {shard_id} is nobody's now; the servers share it out at their next heartbeat")
    if drained is not None:
        click.echo(f"{drained.address} gets no shards until it is started anew")


async def _look(coordinator: "Coordinator", settings: ServerSettings) -> "ClusterView":
    """Look at the servers: as one of them for a moment, since only members see the others."""
    from dataclasses import replace
    from datetime import timedelta

    from server_stub.cluster.identity import new_member_id
    from server_stub.core.cluster import Member, Role

    me = Member(new_member_id(None), "xdb shard", frozenset({Role.SYSTEM}))
    timeout_ms = settings.member_timeout // timedelta(milliseconds=1)
    view = await coordinator.beat(me, lease_ms=None, member_timeout_ms=timeout_ms)
    await coordinator.leave(me.member_id)
    return replace(view, members=[member for member in view.members if member.member_id != me.member_id])


async def _steal(coordinator: "Coordinator", settings: ServerSettings, shard_id: int) -> "Member | None":
    """Take a shard, and drain its owner where others can have its shards; give the owner then."""
    from server_stub.cluster.identity import new_member_id

    view = await _look(coordinator, settings)
    seen = [each for each in view.shards if each.shard_id == shard_id]
    if not seen:
        raise click.UsageError(f"there is no shard {shard_id}; `xdb shard list` shows all")
    thief = new_member_id(None)
    if not await coordinator.acquire(thief, seen, lease_ms=0, is_forced=True):
        raise click.ClickException(f"shard {shard_id} has got another owner in this moment; look again")
    drained = await _drain(coordinator, settings, view, seen[0].owner_id)
    await coordinator.leave(thief)
    return drained


async def _drain(
    coordinator: "Coordinator", settings: ServerSettings, view: "ClusterView", owner_id: str | None
) -> "Member | None":
    """Say in an owner's name that it is draining, or else it would get back at once what it was robbed of."""
    from dataclasses import replace
    from datetime import timedelta

    from server_stub.core.assignment import takers

    owners = [member for member in view.members if member.member_id == owner_id]
    if not owners or not takers(view) - {owner_id}:
        return None
    timeout_ms = settings.member_timeout // timedelta(milliseconds=1)
    await coordinator.beat(replace(owners[0], is_draining=True), lease_ms=None, member_timeout_ms=timeout_ms)
    return owners[0]


def _run(settings: ServerSettings, action: Callable[["Coordinator"], Coroutine[Any, Any, Any]]) -> Any:
    """Do something with the database, and show what fails as an error of the command."""
    from server_stub.core.ports import StoreError
    from server_stub.storage.opening import open_store
    from server_stub.storage.server_store import ServerStore, ServerStoreOptions
    from server_stub.storage.sqlite import SqliteOptions

    if settings.database_url.startswith("sqlite"):
        raise click.UsageError("a SQLite database has one server, which owns everything; there is nothing to share")

    async def run() -> Any:
        options = ServerStoreOptions(max_connections=1, install_schema=False, num_shards=settings.num_shards)
        store = await open_store(settings.database_url, SqliteOptions(), options)
        try:
            assert isinstance(store, ServerStore)
            return await action(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except (StoreError, ValueError) as error:
        raise click.ClickException(str(error)) from error
