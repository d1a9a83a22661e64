"""From a GGUF's tokenizer metadata to tokenizer.json and tokenizer_config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from ..errors import ModelError
from .respell import Respell

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
"""`tokenizer.ggml.token_type`: made by merges; never made from text; always made from its text."""

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3, _QWEN2 = _SPLIT % "{1,3}", _SPLIT % ""
_SPLITS = {"llama-bpe": _LLAMA3, "llama3": _LLAMA3, "llama-v3": _LLAMA3, "qwen2": _QWEN2, "deepseek-r1-qwen": _QWEN2}
"""`tokenizer.ggml.pre` to the pattern that cuts text before the merges."""
_PLAIN = ("gpt-2", "default", "smollm")
"""Cut by GPT-2's pattern, which the byte-level pre-tokenizer has built in."""


def build_tokenizer(metadata: Mapping[str, Any], respell: Sequence[Respell] = ()) -> Tokenizer:
    """The tokenizer of the file, some of its control tokens spelled anew; ids stay.

    Raises `ModelError` when the vocabulary is missing or damaged, or its kind is not known.
    """
    tokens = spelled_tokens(metadata, respell)
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise ModelError("GGUF: the vocabulary names a token twice")
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        tokenizer = _byte_level(vocab, metadata)
    elif kind == "llama":
        tokenizer = _sentencepiece(vocab, metadata)
    else:
        raise ModelError(f"GGUF: tokenizer of kind {kind!r} is not known; known: gpt2, llama")
    types = _types(metadata, len(tokens))
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t, k in zip(tokens, types, strict=True) if k == _CONTROL]
    )
    tokenizer.add_tokens(
        [AddedToken(t, normalized=False) for t, k in zip(tokens, types, strict=True) if k == _USER_DEFINED]
    )
    _frame(tokenizer, tokens, metadata, add_bos=kind == "llama")
    return tokenizer


def tokenizer_config(metadata: Mapping[str, Any], respell: Sequence[Respell] = ()) -> dict[str, Any]:
    """tokenizer_config.json: how `transformers` is to wrap the tokenizer.json beside it."""
    tokens = spelled_tokens(metadata, respell)
    special = {}
    for name, key in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None:
            special[f"{name}_token"] = _at(tokens, index, f"{key}_token_id")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        **special,
    }


def spelled_tokens(metadata: Mapping[str, Any], respell: Sequence[Respell] = ()) -> list[str]:
    """The vocabulary in order of ids. Raises `ModelError` when a token to be spelled anew is not a control token."""
    tokens: list[str] = _list(metadata, "tokens", str)
    types = _types(metadata, len(tokens))
    fresh = {change.token: change.to for change in respell}
    if missing := set(fresh) - {token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL}:
        raise ModelError(f"GGUF: no such control tokens: {', '.join(sorted(missing))}")
    return [fresh.get(token, token) for token in tokens]


def _byte_level(vocab: dict[str, int], metadata: Mapping[str, Any]) -> Tokenizer:
    """Byte-level BPE, as GPT-2, Llama 3, Qwen and SmolLM have it."""
    pre = metadata.get("tokenizer.ggml.pre", "default")
    merges = [_pair(merge) for merge in _list(metadata, "merges", str)]
    try:
        model = models.BPE(vocab=vocab, merges=merges, ignore_merges=_SPLITS.get(pre) == _LLAMA3)
    except Exception as error:  # the library raises bare `Exception`
        raise ModelError(f"GGUF: the tokenizer's merges do not fit its vocabulary: {error}") from error
    tokenizer = Tokenizer(model)
    if pre in _PLAIN:
        steps: list[pre_tokenizers.PreTokenizer] = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
        if pre == "smollm":
            steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    elif pre in _SPLITS:
        steps = [
            pre_tokenizers.Split(Regex(_SPLITS[pre]), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    else:
        raise ModelError(f"GGUF: pre-tokenizer {pre!r} is not known; known: {', '.join([*_PLAIN, *_SPLITS])}")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if _SPLITS.get(pre) == _QWEN2:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(vocab: dict[str, int], metadata: Mapping[str, Any]) -> Tokenizer:
    """SentencePiece BPE with byte fallback, as Llama 2 and Mistral have it. The merges follow from the scores."""
    scores = _list(metadata, "scores", float)
    if len(scores) != len(vocab):
        raise ModelError("GGUF: the tokenizer's scores do not fit its vocabulary")
    unknown = _at(list(vocab), metadata.get("tokenizer.ggml.unknown_token_id", 0), "unknown_token_id")
    model = models.BPE(vocab=vocab, merges=_merges(vocab, scores), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    tail: list[decoders.Decoder] = []
    if metadata.get("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend("▁"))
        tail = [decoders.Strip(content=" ", left=1)]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *tail])
    return tokenizer


def _merges(vocab: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to make a piece of two others; better scores merge first, then the parts' own order."""
    found = []
    for piece, index in vocab.items():
        for cut in range(1, len(piece)):
            left, right = vocab.get(piece[:cut]), vocab.get(piece[cut:])
            if left is not None and right is not None:
                found.append((-scores[index], left, right, piece[:cut], piece[cut:]))
    return [(left, right) for *_, left, right in sorted(found)]


def _frame(tokenizer: Tokenizer, tokens: Sequence[str], metadata: Mapping[str, Any], *, add_bos: bool) -> None:
    """Set the begin and end tokens that this tokenizer puts around a text by itself."""
    parts = {"single": "$A", "pair": "$A $B"}
    special: list[tuple[str, int]] = []
    for key, default in {"bos": add_bos, "eos": False}.items():
        if not metadata.get(f"tokenizer.ggml.add_{key}_token", default):
            continue
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        token = _at(tokens, index, f"{key}_token_id")
        special.append((token, int(index)))  # type: ignore[arg-type]
        if key == "bos":
            parts = {"single": f"{token} $A", "pair": f"{token} $A {token} $B"}
        else:
            parts = {name: f"{text} {token}" for name, text in parts.items()}
    if special:
        tokenizer.post_processor = processors.TemplateProcessing(**parts, special_tokens=special)


def _pair(merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not space:
        raise ModelError(f"GGUF: {merge!r} is not a merge")
    return left, right


def _types(metadata: Mapping[str, Any], count: int) -> list[int]:
    types = metadata.get("tokenizer.ggml.token_type") or [_NORMAL] * count
    if not isinstance(types, list) or len(types) != count:
        raise ModelError("GGUF: tokenizer.ggml.token_type does not fit the vocabulary")
    return types


def _list(metadata: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise ModelError(f"GGUF: tokenizer.ggml.{name} is missing or damaged")
    return value


def _at(tokens: Sequence[str], index: Any, key: str) -> str:
    if not isinstance(index, int) or not 0 <= index < len(tokens):
        raise ModelError(f"GGUF: tokenizer.ggml.{key} = {index!r} is not a token of the vocabulary")
    return tokens[index]
