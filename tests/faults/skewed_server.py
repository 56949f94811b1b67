"""`xdb` on a machine with a wrong clock: every wall clock of this process shows $XDB_TEST_SKEW_S more."""

import os
import time

_SKEW_S = float(os.environ["XDB_TEST_SKEW_S"])
_true_time, _true_time_ns = time.time, time.time_ns


def _skewed_time() -> float:
    return _true_time() + _SKEW_S


def _skewed_time_ns() -> int:
    return _true_time_ns() + round(_SKEW_S * 1_000_000_000)


if __name__ == "__main__":
    time.time, time.time_ns = _skewed_time, _skewed_time_ns
    from server_stub.cli import main

    main()
