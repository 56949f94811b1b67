"""Sending emails; here they are printed."""


def send_email(address: str, template: str) -> None:
    """Send one of the emails "verify", "reminder" and "welcome".

    A state may be called more than once, so a real one hands `ctx.idempotency_key` to the mail provider.
    """
    print(f"    email to {address}: {template}", flush=True)
