"""Sending emails; here they are printed."""

from examples.console import say


def send_email(address: str, template: str) -> None:
    """Send one of the emails "verify", "reminder" and "welcome".

    A state may be called more than once, so a real one hands `ctx.idempotency_key` to the mail provider.
    """
    say(f"    email to {address}: {template}")
