"""What can go wrong with an engine. The classes carry facts; the gateway's table turns them into HTTP."""

from __future__ import annotations


class EngineError(Exception):
    """Base of this room."""


class EngineBusy(EngineError):
    """The waiting queue is full; `retry_after` seconds is a fair guess for another try."""

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class RequestRejected(EngineError):
    """The request itself cannot be served; trying again will not help."""


class SequenceFailed(EngineError):
    """This sequence broke while it ran (for example NaN logits); others go on."""


class EngineDead(EngineError):
    """The engine process is gone, with every sequence in it."""


class ModelError(EngineError):
    """A model folder is missing, damaged, or of an architecture that the engine does not know."""
