"""What a client is told last about a sequence. Pure."""

from __future__ import annotations

from .messages import FailCode, Failed, Finished, FinishReason
from .sequence import Sequence


def finished(sequence: Sequence, reason: FinishReason) -> Finished:
    """It ended in order."""
    return Finished(
        id=sequence.id,
        reason=reason,
        stop_id=sequence.stop_id,
        prompt_tokens=sequence.prompt_tokens,
        cached_tokens=sequence.cached_tokens or 0,
        completion_tokens=sequence.sent - sequence.prompt_tokens,
        thinking_tokens=sequence.thinking_tokens,
        forced_tokens=sequence.forced_tokens,
        preemptions=sequence.preemptions,
    )


def failed(sequence: Sequence, code: FailCode, message: str) -> Failed:
    """It did not."""
    return Failed(
        id=sequence.id,
        code=code,
        message=message,
        completion_tokens=sequence.sent - sequence.prompt_tokens,
        prompt_tokens=sequence.prompt_tokens,
    )
