"""How large a request may be."""

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiLimits:
    """Limits of the service API; what exceeds one is answered 400. Their defaults stand with the settings.

    Args:
        max_value_bytes: The largest value: an input, payload, attribute or output, as JSON.
        max_call_bytes: The largest call: the body of a request, or a line of a batch.
        max_batch_bytes: The largest body of a batch request.
        max_batch_calls: The most calls in a batch request.
        max_json_depth: The deepest nesting of a call, its own levels included.
        body_timeout: How long the next piece of a body may take to arrive.
    """

    max_value_bytes: int
    max_call_bytes: int
    max_batch_bytes: int
    max_batch_calls: int
    max_json_depth: int
    body_timeout: timedelta
