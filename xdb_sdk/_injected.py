"""The mark of what the worker hands to a method, by which type checkers tell an RPC's input from the rest."""


class Injected:
    """Base of ProcessContext and StateContext, Persistence, Communication and CommandResults."""

    __slots__ = ()
