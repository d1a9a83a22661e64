"""Says what is wrong with a request before anything is done for it. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .config import EngineConfig
from .messages import Failed, Generate, LaneInfo, SamplingParams, ThinkLimit

MOST_LOGPROBS = 20
MOST_BIASES = 4096
MOST_STOPS = 1024
MOST_MARKERS = 64
MOST_WORDS = 1024
LARGEST = 1e6
"""Bound on penalties and biases: enough to force or to forbid, too little to overflow."""
_INT64 = range(-(1 << 63), 1 << 63)


def find_config_fault(config: EngineConfig) -> str | None:
    """What keeps an engine from running with this configuration, None if nothing does."""
    names = [lane.name for lane in config.lanes]
    if not names:
        return "no lanes are configured"
    if len(set(names)) < len(names):
        return f"lane names repeat: {', '.join(names)}"
    for lane in config.lanes:
        for field in ("block_size", "max_sequences", "max_batch_tokens", "max_waiting"):
            if getattr(lane, field) < 1:
                return f"lane {lane.name!r}: {field} is {getattr(lane, field)}, must be 1 or more"
        if not 0 < lane.weight < math.inf:
            return f"lane {lane.name!r}: weight is {lane.weight}, must be positive and finite"
        for field in ("itl_target", "max_latency"):
            if not 0 <= getattr(lane, field) < math.inf:
                return f"lane {lane.name!r}: {field} is {getattr(lane, field)}, must be 0 or more and finite"
    if not 0 < config.client_timeout < math.inf:
        return f"client_timeout is {config.client_timeout}, must be positive and finite"
    return None


def find_fault(request: Generate, info: LaneInfo) -> Failed | None:
    """None when the lane can take it."""
    prompt = len(request.token_ids)
    try:
        _check(request, info)
    except ValueError as why:
        return Failed(id=request.id, code="invalid", message=str(why), prompt_tokens=prompt)
    wanted = prompt + request.sampling.max_tokens
    if wanted > info.context:
        text = (
            f"{prompt} prompt tokens and max_tokens of {request.sampling.max_tokens} "
            f"exceed the context of {info.context} tokens"
        )
        return Failed(id=request.id, code="too_long", message=text, prompt_tokens=prompt)
    return None


def _check(request: Generate, info: LaneInfo) -> None:
    if not request.token_ids:
        raise ValueError("token_ids is empty")
    _ids("token_ids", request.token_ids, info.vocab)
    _ids("forced", request.forced, info.vocab)
    _whole("priority", request.priority, _INT64)
    _sampling(request.sampling, info.vocab)
    if request.think is not None:
        _think(request.think, info.vocab)


def _sampling(params: SamplingParams, vocab: int) -> None:
    if params.max_tokens < 1:
        raise ValueError(f"max_tokens is {params.max_tokens}, must be 1 or more")
    if params.min_tokens < 0:
        raise ValueError(f"min_tokens is {params.min_tokens}, must be 0 or more")
    for name in ("max_tokens", "min_tokens", "top_k"):
        _whole(name, getattr(params, name), _INT64)
    if params.top_k < 0:
        raise ValueError(f"top_k is {params.top_k}, must be 0 or more")
    _between("temperature", params.temperature, 0.0, math.inf)
    _between("top_p", params.top_p, 0.0, 1.0, open_below=True)
    _between("min_p", params.min_p, 0.0, 1.0)
    _between("presence_penalty", params.presence_penalty, -LARGEST, LARGEST)
    _between("frequency_penalty", params.frequency_penalty, -LARGEST, LARGEST)
    _between("repetition_penalty", params.repetition_penalty, 1 / LARGEST, LARGEST)
    if len(params.logit_bias) > MOST_BIASES:
        raise ValueError(f"logit_bias has {len(params.logit_bias)} entries, at most {MOST_BIASES} are taken")
    _ids("logit_bias", params.logit_bias, vocab)
    for token, bias in params.logit_bias.items():
        _between(f"logit_bias of token {token}", bias, -LARGEST, LARGEST)
    if len(params.stop_token_ids) > MOST_STOPS:
        raise ValueError(f"stop_token_ids has {len(params.stop_token_ids)} entries, at most {MOST_STOPS} are taken")
    _ids("stop_token_ids", params.stop_token_ids, vocab)
    if params.seed is not None:
        _whole("seed", params.seed, _INT64)
    if params.logprobs is not None:
        _whole("logprobs", params.logprobs, range(MOST_LOGPROBS + 1))


def _think(limit: ThinkLimit, vocab: int) -> None:
    if not limit.closers:
        raise ValueError("think.closers is empty")
    for name in ("closers", "openers", "implicit_closers", "call_closers"):
        markers: tuple[tuple[int, ...], ...] = getattr(limit, name)
        if len(markers) > MOST_MARKERS:
            raise ValueError(f"think.{name} has {len(markers)} entries, at most {MOST_MARKERS} are taken")
        for marker in markers:
            if not 0 < len(marker) <= MOST_MARKERS:
                raise ValueError(f"think.{name} holds a marker of {len(marker)} tokens, not 1 to {MOST_MARKERS}")
            _ids(f"think.{name}", marker, vocab)
    for name in ("handoff", "after"):
        words: tuple[int, ...] = getattr(limit, name)
        if len(words) > MOST_WORDS:
            raise ValueError(f"think.{name} has {len(words)} tokens, at most {MOST_WORDS} are taken")
        _ids(f"think.{name}", words, vocab)
    for name in ("hard", "soft", "answer_reserve"):
        value = getattr(limit, name)
        if value is not None and value < 0:
            raise ValueError(f"think.{name} is {value}, must be 0 or more")


def _ids(name: str, ids: Iterable[int], vocab: int) -> None:
    low, high = min(ids, default=0), max(ids, default=0)
    if low < 0 or high >= vocab:
        raise ValueError(f"{name} holds id {low if low < 0 else high}, outside the vocabulary of {vocab}")


def _whole(name: str, value: int, allowed: range) -> None:
    if value not in allowed:
        raise ValueError(f"{name} is {value}, must be from {allowed.start} to {allowed.stop - 1}")


def _between(name: str, value: float, low: float, high: float, *, open_below: bool = False) -> None:
    """Finite and within [low, high], or (low, high]."""
    if not math.isfinite(value) or not low <= value <= high or (open_below and value == low):
        raise ValueError(f"{name} is {value}, must be finite and from {low:g} {'(excluded) ' * open_below}to {high:g}")
