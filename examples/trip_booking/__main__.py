"""Books a trip that works out and one that does not: `python -m examples.trip_booking`."""

from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from examples.console import say
from examples.support import running
from examples.trip_booking.process import Trip, TripBookingProcess
from examples.trip_booking.worker import app, registry
from xdb_sdk import Client, ProcessFailed

LIMIT = timedelta(seconds=30)


def main() -> None:
    """Run server, worker and client on a database that is gone afterwards."""
    with TemporaryDirectory() as directory:
        database = Path(directory) / "trips.db"
        with running(app, database) as options, Client(registry, options) as client:
            book(client, Trip(traveller="Ada", destination="Lisbon"))
            book(client, Trip(traveller="Bob", destination="Atlantis"))


def book(client: Client, trip: Trip) -> None:
    """Book a trip and say how it went."""
    process_id = f"trip-of-{trip.traveller}"
    say(f"{trip.traveller} wants to go to {trip.destination}")
    client.start_process(process_id, TripBookingProcess, trip)
    # [start:outcome]
    try:
        bookings = client.wait_for_process_completion(process_id, list[str], timeout=LIMIT)
        say(f"    booked: {', '.join(bookings)}")
    except ProcessFailed as failure:
        problems = failure.results[0].output
        say(f"    failed: {', '.join(problems)}")
    # [end:outcome]


if __name__ == "__main__":
    main()
