"""Log lines of the commands that run: an event, and its facts as name=value."""

import json
import logging
import logging.config
import time
from typing import Any

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_QUOTED = frozenset(" \"'=")
"""Characters that a value is not shown with as it is."""


class FactFormatter(logging.Formatter):
    """Write a record as `<UTC time> <level> <logger>: <event> <name>=<value> ...`, then the traceback if it has one.

    Values with blanks, quotes or control characters are written as JSON, so that no value looks like another line.
    """

    def __init__(self) -> None:
        super().__init__()
        self._second = 0
        self._second_text = ""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the name is logging's
        """Write the record's first line."""
        facts = [f"{name}={_text(value)}" for name, value in vars(record).items() if name not in _STANDARD]
        return " ".join([self._time_of(record), record.levelname, f"{record.name}:", record.message, *facts])

    def _time_of(self, record: logging.LogRecord) -> str:
        """Write when it was logged, in UTC. Many lines are of one second, whose text is kept: it costs most."""
        second = int(record.created)
        if second != self._second:
            self._second, self._second_text = second, time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
        return f"{self._second_text}.{int(record.msecs):03d}Z"


def _text(value: Any) -> str:
    text = str(value)
    is_plain = text.isprintable() and text and _QUOTED.isdisjoint(text)
    return text if is_plain else json.dumps(text)


def set_up_logging(level: str) -> None:
    """Log as `logging_config` says, in a process that is all ours: a record holds only what its line shows."""
    logging._srcfile = None  # as its documentation has it, so that no caller is looked for
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.config.dictConfig(logging_config(level))


def logging_config(level: str) -> dict[str, Any]:
    """Describe, for `logging.config`, a log on standard error from `level` on, and of frameworks from WARNING on."""
    quiet = max(logging.WARNING, logging.getLevelName(level))
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"facts": {"()": FactFormatter}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "facts"}},
        "root": {"level": level, "handlers": ["stderr"]},
        "loggers": {name: {"level": quiet} for name in ("uvicorn", "asyncio", "httpx", "httpcore", "aiohttp")},
    }
