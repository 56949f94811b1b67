"""When a failed attempt is repeated (semantics 2.5)."""

import math

from xdb_sdk.protocol import RetryPolicyConfig

LONGEST_INTERVAL_MS = 365 * 24 * 3_600_000
"""Bound of a wait whose policy sets no maximum."""


def interval_ms(policy: RetryPolicyConfig, completed_attempts: int) -> int:
    """Give the wait after `completed_attempts` (from 1) have failed: at least 1 ms, never above the maximum.

    The power is bounded before it is computed, so that no number of attempts overflows.
    """
    maximum = policy.maximum_interval_ms or LONGEST_INTERVAL_MS
    initial = max(policy.initial_interval_ms, 1)
    if initial >= maximum:
        return maximum
    growth = (completed_attempts - 1) * math.log(policy.backoff_coefficient)
    if growth >= math.log(maximum / initial):
        return maximum
    return min(max(int(initial * policy.backoff_coefficient ** (completed_attempts - 1)), 1), maximum)


def next_attempt_at_ms(
    policy: RetryPolicyConfig, *, completed_attempts: int, first_attempt_at_ms: int, now_ms: int
) -> int | None:
    """Give the instant of the next attempt, None when the policy allows no other."""
    if 0 < policy.maximum_attempts <= completed_attempts:
        return None
    due_at_ms = now_ms + interval_ms(policy, completed_attempts)
    if policy.maximum_attempts_duration_ms and due_at_ms >= first_attempt_at_ms + policy.maximum_attempts_duration_ms:
        return None
    return due_at_ms


def attempt_timeout_ms(
    policy: RetryPolicyConfig, *, api_timeout_ms: int, cap_ms: int, first_attempt_at_ms: int, now_ms: int
) -> int:
    """Bound one attempt: by the API's timeout, the server's cap and the time left of the policy, at least 1 s."""
    bound = min(api_timeout_ms or cap_ms, cap_ms)
    if policy.maximum_attempts_duration_ms:
        left = first_attempt_at_ms + policy.maximum_attempts_duration_ms - now_ms
        bound = min(bound, max(left, 1_000))
    return bound
