"""Prints for the demos."""

import sys


def say(line: str) -> None:
    """Print a line at once and in one piece, though several threads print."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
