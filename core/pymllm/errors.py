"""Every error a user can cause. The message is one line that says what is wrong and what to do."""

from __future__ import annotations


class PymllmError(Exception):
    """Something the user can fix: the command line prints it without a traceback and exits with 2."""


class ConfigError(PymllmError):
    """A configuration file or override does not fit the schema."""


class PluginError(PymllmError):
    """A plugin is missing, ambiguous, outdated, broken, or cannot run here."""


class CheckpointError(PymllmError):
    """A checkpoint cannot be found, read, or does not fill the model exactly."""


class CapacityError(PymllmError):
    """The memory budget is too small; the message holds the numbers and the setting to change."""


class RequestError(PymllmError, ValueError):
    """One request is invalid (HTTP 400). ``field`` names the offending request field, if there is one."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ConflictError(PymllmError):
    """What is asked for contradicts what is going on, such as a second profile (HTTP 409)."""


class QueueFullError(PymllmError):
    """Too many requests are waiting (HTTP 429)."""


class EngineDeadError(PymllmError):
    """The engine stopped and cannot answer; open requests end with this error (HTTP 503)."""
