"""Declarations that were probably meant and are spelt otherwise, so that they would do nothing without a word."""

import inspect
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, get_origin

from xdb_sdk._rpc import RPC_OPTIONS
from xdb_sdk._state import AsyncState

_CLOSENESS = 0.85
"""Of a name to the one it is taken for, from 0 to 1: one letter is wrong, missing or too much."""


def misspelt_declarations(user_class: type, base: type) -> Iterator[str]:
    """Say which attributes of a class are probably misspelt overrides of what `base` reads.

    Only what the class leaves out is looked for, and only in attributes of the same kind: methods for methods, states
    for `starting_state` and `states`. All other attributes are the user's own.
    """
    own_classes = [cls for cls in user_class.__mro__ if cls not in base.__mro__]
    own = {name for cls in own_classes for name in vars(cls) if not name.startswith("_")}
    left_out = {_spelling(name): name for name in vars(base) if not name.startswith("_") and name not in own}
    if "get_async_states" in own:  # it stands for both class attributes
        left_out = {spelling: name for spelling, name in left_out.items() if name not in ("starting_state", "states")}
    for name in sorted(own):
        value = inspect.getattr_static(user_class, name)
        for close in get_close_matches(_spelling(name), left_out, n=1, cutoff=_CLOSENESS):
            meant = left_out[close]
            if _is_method(value) if callable(vars(base)[meant]) else _holds_states(value, name):
                yield f"{user_class.__name__}.{name} does nothing: did you mean {meant!r}? If not, rename it"


def _spelling(name: str) -> str:
    return name.replace("_", "").lower()


def _is_method(value: Any) -> bool:
    return inspect.isfunction(value) and not hasattr(value, RPC_OPTIONS)


def _holds_states(value: Any, name: str) -> bool:
    """Whether an attribute is a state or a list of them; a class that is only written inside the other is not meant."""
    if isinstance(value, list | tuple):
        return bool(value) and all(_is_state(item) for item in value)
    return _is_state(value) and getattr(value, "__name__", None) != name


def _is_state(value: Any) -> bool:
    state_class = get_origin(value) or value
    return isinstance(value, AsyncState) or (isinstance(state_class, type) and issubclass(state_class, AsyncState))
