"""The airline and the hotels, with their bad days."""

from examples.console import say

_seen_by_airline: set[str] = set()


class AirlineDownError(Exception):
    """The airline does not answer; it may a moment later."""


class NoRoomError(Exception):
    """The hotel has no room."""


def book_flight(destination: str, idempotency_key: str) -> str:
    """Book a seat and return the ticket's number. Every request fails once and is answered when it is repeated.

    Raises:
        AirlineDownError: The airline has not seen this key before.
    """
    if idempotency_key not in _seen_by_airline:
        _seen_by_airline.add(idempotency_key)
        raise AirlineDownError("the airline does not answer")
    return f"flight to {destination}"


def book_hotel(destination: str, idempotency_key: str) -> str:
    """Book a room and return its number.

    Raises:
        NoRoomError: Always, in Atlantis.
    """
    if destination == "Atlantis":
        raise NoRoomError("there is no room in Atlantis")
    return f"hotel in {destination}"


def call_off(booking: str) -> None:
    """Give a booking back; giving it back twice is the same as once."""
    say(f"    called off: {booking}")
