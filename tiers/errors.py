"""What can go wrong in a tier. The classes carry facts; the gateway's table turns them into HTTP."""

from __future__ import annotations


class TierError(Exception):
    """Base of this room."""


class TierUnavailable(TierError):
    """The tier cannot answer now: still loading, dead, or full. `retry_after` in seconds."""

    def __init__(self, tier: str, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.tier = tier
        self.retry_after = retry_after


class ContextTooLong(TierError):
    """Prompt and cap do not fit the tier's context, all in tokens."""

    def __init__(self, *, prompt_tokens: int, max_tokens: int | None, context: int) -> None:
        if max_tokens is None or prompt_tokens >= context:
            text = f"This model's maximum context length is {context} tokens, but the messages take {prompt_tokens}."
        else:
            text = (
                f"This model's maximum context length is {context} tokens, but {prompt_tokens + max_tokens} were "
                f"requested ({prompt_tokens} in the messages, {max_tokens} in the completion)."
            )
        super().__init__(text)
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.context = context


class BadPrompt(TierError):
    """The messages cannot be put into the tier's template. `param` names the place, as `messages[2].role`."""

    def __init__(self, message: str, param: str = "messages") -> None:
        super().__init__(message)
        self.param = param


class BadField(TierError):
    """A field is fine by itself but not on this tier: an id outside its vocabulary, for example."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class GenerationFailed(TierError):
    """The tier took the request and broke while answering."""


class UpstreamRefused(TierError):
    """A remote tier said no; `status` is its HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ModelMissing(TierError):
    """No model of this name is registered, or its files are damaged."""
