"""What a user fills in."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Form:
    """The sign-up form."""

    email: str
    first_name: str
    last_name: str
