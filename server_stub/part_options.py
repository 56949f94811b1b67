"""What the settings mean to each part of the server."""

from server_stub.api.limits import ApiLimits
from server_stub.cluster.keeper import KeeperOptions
from server_stub.config import MismatchRule, ServerSettings
from server_stub.core.history import HistoryRules
from server_stub.delivery.delivery import DeliveryOptions
from server_stub.delivery.poller import PollerOptions
from server_stub.dispatch.options import DispatchOptions
from server_stub.engine.claims import Claims
from server_stub.engine.operations import OperationsOptions
from server_stub.storage.server_store import ServerStoreOptions
from server_stub.storage.sqlite import SqliteOptions, Synchronous

_LEAST_CALLS_IN_MEMORY = 1_000


def sqlite_options(settings: ServerSettings) -> SqliteOptions:
    """Say how a SQLite file is opened."""
    return SqliteOptions(
        synchronous=Synchronous(settings.durability),
        busy_timeout=settings.busy_timeout,
        foreign_keys=settings.foreign_keys,
        install_schema=settings.install_schema,
    )


def server_options(settings: ServerSettings) -> ServerStoreOptions:
    """Say how a database server is used."""
    return ServerStoreOptions(
        max_connections=settings.max_connections,
        max_transactions=transactions_at_a_time(settings),
        connect_timeout=settings.connect_timeout,
        lock_timeout=settings.lock_timeout,
        statement_timeout=settings.statement_timeout,
        install_schema=settings.install_schema,
        num_shards=settings.num_shards,
    )


def transactions_at_a_time(settings: ServerSettings) -> int:
    """Give how many transactions a database server is given at a time; a connection at least is left for reads."""
    return min(settings.max_transactions, settings.max_connections - 1)


def keeper_options(settings: ServerSettings) -> KeeperOptions:
    """Say how shards are shared with other servers."""
    return KeeperOptions(
        heartbeat=settings.heartbeat,
        lease=settings.lease,
        member_timeout=settings.member_timeout,
        handover=settings.shutdown_grace,
    )


def poller_options(settings: ServerSettings) -> PollerOptions:
    """Say how often is looked for what other servers made due."""
    return PollerOptions(poll_interval=settings.poll_fallback, look_ahead=settings.look_ahead)


def dispatch_options(settings: ServerSettings) -> DispatchOptions:
    """Say how workers are called."""
    return DispatchOptions(
        max_call_timeout=settings.max_api_timeout,
        max_calls_in_flight=settings.max_worker_calls,
        max_waiting_calls=_calls_in_memory(settings),
        max_batch_calls=settings.max_worker_batch_calls,
        max_batch_bytes=settings.max_worker_batch_bytes,
        max_answer_bytes=settings.max_answer_bytes,
        max_value_bytes=settings.max_value_bytes,
        max_json_depth=settings.max_json_depth,
        max_lock_conflicts=settings.max_lock_conflicts,
        max_revise_rounds=settings.max_revise_rounds,
        batch_probe_interval=settings.batch_probe_interval,
        initial_busy_wait=settings.initial_busy_wait,
        max_busy_wait=settings.max_busy_wait,
        restart_patience=settings.worker_restart_patience,
        worker_headers=settings.worker_headers,
    )


def operations_options(settings: ServerSettings) -> OperationsOptions:
    """Say what bounds the calls of clients."""
    return OperationsOptions(
        max_rpc_timeout_ms=round(settings.max_rpc_timeout.total_seconds() * 1_000),
        commit_timeout_s=settings.commit_timeout.total_seconds(),
        recheck_s=settings.recheck_interval.total_seconds(),
        allowed_worker_urls=settings.allowed_worker_urls,
    )


def claims(settings: ServerSettings, *, num_shards: int) -> Claims:
    """Say how requests are remembered."""
    return Claims(
        num_shards=num_shards,
        lifetime_ms=round(settings.request_ttl.total_seconds() * 1_000),
        rejects_mismatch=settings.on_request_mismatch is MismatchRule.REJECT,
    )


def history_rules(settings: ServerSettings) -> HistoryRules:
    """Say what is recorded."""
    return HistoryRules(
        off_in=settings.history_off,
        values_in=settings.history_values,
        max_events=settings.max_history_events,
        max_bytes=settings.max_history_bytes,
    )


def delivery_options(settings: ServerSettings, *, notify: bool) -> DeliveryOptions:
    """Say how what is due is found."""
    return DeliveryOptions(
        look_ahead=settings.look_ahead,
        rescan_interval=settings.rescan_interval,
        notify=notify,
        max_planned_calls=_calls_in_memory(settings),
    )


def _calls_in_memory(settings: ServerSettings) -> int:
    """Give how many calls may wait in memory: enough to keep a worker busy, and not a whole backlog."""
    return max(2 * settings.max_worker_calls, _LEAST_CALLS_IN_MEMORY)


def api_limits(settings: ServerSettings) -> ApiLimits:
    """Say what a request may hold."""
    return ApiLimits(
        max_value_bytes=settings.max_value_bytes,
        max_call_bytes=settings.max_call_bytes,
        max_batch_bytes=settings.max_batch_bytes,
        max_batch_calls=settings.max_batch_calls,
        max_json_depth=settings.max_json_depth,
        body_timeout=settings.body_timeout,
    )
