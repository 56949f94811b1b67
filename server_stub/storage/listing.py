"""What a list of executions is filtered by; the same for every database server."""

from xdb_sdk.protocol import ListRequest


def list_filters(request: ListRequest) -> list[tuple[str, str | int]]:
    """Give the conditions on an execution `p`, with `{}` for the mark of a value, and the values.

    The condition on the status is not among them: each status is walked through by itself.
    """
    filters = (
        ("p.namespace = {}", request.namespace),
        ("p.process_id = {}", request.process_id),
        ("p.process_type = {}", request.process_type),
        ("p.started_at_ms >= {}", request.started_from_ms),
        ("p.started_at_ms < {}", request.started_before_ms),
        ("p.closed_at_ms >= {}", request.closed_from_ms),
        ("p.closed_at_ms < {}", request.closed_before_ms),
    )
    return [(condition, value) for condition, value in filters if value is not None]
