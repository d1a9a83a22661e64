"""Whether a tokenizer encodes what stands between two control tokens without regard to what is around (pure)."""

from __future__ import annotations

from typing import Any


def independent(state: dict[str, Any]) -> bool:
    """`state` is a tokenizer.json. True only where it is certain: byte-level BPE whose control tokens stand alone.

    Tokenizers cut a text at its added tokens first and encode the pieces one by one; but some let a token swallow
    spaces around it, and some treat the first piece of a text in a way of its own (a metaspace, a prefix space).
    """
    alone = all(
        not (token["lstrip"] or token["rstrip"] or token["single_word"] or token["normalized"])
        for token in state["added_tokens"]
    )
    model, normalizer = state["model"], state["normalizer"]
    return (
        alone
        and model["type"] == "BPE"
        and not model.get("dropout")
        and (normalizer is None or normalizer["type"] == "NFC")
        and _stateless(state["pre_tokenizer"])
    )


def _stateless(step: dict[str, Any] | None) -> bool:
    """Whether a pre-tokenizer looks at a piece alone, wherever it stands."""
    match step:
        case {"type": "Sequence", "pretokenizers": list(inner)}:
            return all(map(_stateless, inner))
        case {"type": "ByteLevel", "add_prefix_space": False} | {"type": "Digits" | "Split"}:
            return True
        case _:
            return False
