"""The process: two bookings in parallel, each with its retries, and a state that settles the trip after both."""

from dataclasses import dataclass

from examples.console import say
from examples.trip_booking.suppliers import AirlineDownError, NoRoomError, book_flight, book_hotel, call_off
from xdb_sdk import (
    AsyncState,
    CommandRequest,
    CommandResults,
    Communication,
    InternalQueueCommand,
    ObjectProcess,
    RetryPolicy,
    StateContext,
    StateDecision,
    StateMovement,
    internal_queue,
    state,
)


@dataclass(frozen=True)
class Trip:
    """Where someone wants to go."""

    traveller: str
    destination: str


@dataclass(frozen=True)
class Outcome:
    """How a booking went; without `booking` it could not be made."""

    booking: str | None
    problem: str = ""


# [start:parallel]
class PlanTripState(AsyncState[Trip]):
    """Begin both bookings at once, and the state that waits for them."""

    def execute(self, input: Trip) -> StateDecision:
        """Start three states, which run in parallel from here on."""
        return StateDecision.multi_next_states(
            StateMovement.create(BookFlightState, input),
            StateMovement.create(BookHotelState, input),
            SettleState,
        )


# [end:parallel]
# [start:recovery]
class GiveUpState(AsyncState[Trip]):
    """Stand in for a booking whose attempts are exhausted, with the same input."""

    def execute(self, ctx: StateContext, communication: Communication) -> StateDecision:
        """Report that there will be no booking, so that nobody waits for it in vain."""
        assert ctx.recover_from is not None  # no state goes here by itself
        problem = f"{ctx.recover_from.state_execution_id}: {ctx.recover_from.error_message}"
        communication.publish_to_internal_queue(TripBookingProcess.outcomes, Outcome(None, problem))
        return StateDecision.dead_end()


# [end:recovery]
# [start:retry]
@state(
    execute_api_retry_policy=RetryPolicy(initial_interval_seconds=0.2, maximum_attempts=3),
    proceed_to_state_when_execute_retry_exhausted=GiveUpState,
)
class BookingState(AsyncState[Trip]):
    """What both bookings have in common: three attempts, then GiveUpState."""


class BookFlightState(BookingState):
    """Book the flight."""

    def execute(self, ctx: StateContext, input: Trip, communication: Communication) -> StateDecision:
        """Ask the airline. The key is the same for every attempt, so that a repeated one books no second seat."""
        try:
            booking = book_flight(input.destination, ctx.idempotency_key)
        except AirlineDownError as error:
            say(f"    flight, attempt {ctx.attempt}: {error}")
            raise  # a failed attempt, which is repeated by the retry policy
        communication.publish_to_internal_queue(TripBookingProcess.outcomes, Outcome(booking))
        return StateDecision.dead_end()


# [end:retry]
class BookHotelState(BookingState):
    """Book the hotel."""

    def execute(self, ctx: StateContext, input: Trip, communication: Communication) -> StateDecision:
        """Ask the hotel."""
        try:
            booking = book_hotel(input.destination, ctx.idempotency_key)
        except NoRoomError as error:
            say(f"    hotel, attempt {ctx.attempt}: {error}")
            raise
        communication.publish_to_internal_queue(TripBookingProcess.outcomes, Outcome(booking))
        return StateDecision.dead_end()


# [start:settle]
class SettleState(AsyncState[None]):
    """Confirm the trip if both bookings were made; otherwise call off the one that was."""

    def wait_until(self) -> CommandRequest:
        """Wait for one outcome of each booking."""
        return CommandRequest.for_all_command_completed(
            InternalQueueCommand.by_name(TripBookingProcess.outcomes, count=2)
        )

    def execute(self, command_results: CommandResults) -> StateDecision:
        """Look at both outcomes."""
        outcomes = command_results.values_of(TripBookingProcess.outcomes)
        bookings = [outcome.booking for outcome in outcomes if outcome.booking is not None]
        if len(bookings) == len(outcomes):
            return StateDecision.graceful_complete_process(sorted(bookings))
        for booking in bookings:
            call_off(booking)
        return StateDecision.force_fail_process([outcome.problem for outcome in outcomes if outcome.problem])


# [end:settle]
class TripBookingProcess(ObjectProcess):
    """Someone goes on a trip, with a flight and a hotel or not at all."""

    outcomes = internal_queue(Outcome)

    starting_state = PlanTripState
    states = (BookFlightState, BookHotelState, GiveUpState, SettleState)
