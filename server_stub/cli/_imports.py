"""What a command is given as MODULE:NAME, imported from the user's project."""

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import click


def import_named(reference: str) -> Any:
    """Import what `MODULE:NAME` names, such as `myapp.worker:app`. Modules of the current directory come first.

    Raises:
        click.ClickException: There is no such module or name, or the module cannot be imported.
    """
    module_name, _, path = reference.partition(":")
    if not module_name or not path:
        raise click.ClickException(f"{reference!r} has no form MODULE:NAME, as in myapp.worker:app")
    found: Any = _import_module(module_name)
    for name in path.split("."):
        if not hasattr(found, name):
            raise click.ClickException(f"module {module_name!r} has no {path!r}; check the name after the colon")
        found = getattr(found, name)
    return found


def _import_module(name: str) -> ModuleType:
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            raise click.ClickException(
                f"there is no module {error.name!r} in {directory} or among the installed packages; "
                "run the command in the directory of your project"
            ) from error
        frames = traceback.format_exception(type(error), error, _user_frames(error.__traceback__))
        raise click.ClickException(f"{name} cannot be imported:\n{''.join(frames).rstrip()}") from error


def _user_frames(trace: TracebackType | None) -> TracebackType | None:
    """Leave out the frames of this module and of the machinery of import, down to the user's own."""
    while trace and (trace.tb_frame.f_globals.get("__name__") or "").partition(".")[0] in ("server_stub", "importlib"):
        trace = trace.tb_next
    return trace
