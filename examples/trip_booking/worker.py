"""The worker of the trips: `uvicorn examples.trip_booking.worker:app --port 8802`."""

from examples.trip_booking.process import TripBookingProcess
from xdb_sdk import Registry, Worker

registry = Registry()
registry.add_process(TripBookingProcess)

app = Worker(registry)
