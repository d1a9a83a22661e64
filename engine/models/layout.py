"""Names and shapes that the Llama family of checkpoints shares."""

from __future__ import annotations

from .spec import AttentionSpec, MlpSpec, ModelSpec, MoeSpec, Source, Weight, weight


def trunk(spec: ModelSpec) -> dict[str, Weight]:
    """Everything but the feed-forward blocks: embedding, norms, attention, head."""
    hidden = (spec.hidden,)
    weights = {
        "embed": weight(Source("model.embed_tokens.weight", (spec.vocab, spec.hidden))),
        "norm": weight(Source("model.norm.weight", hidden)),
    }
    if not spec.tied:
        weights["head"] = weight(Source("lm_head.weight", (spec.vocab, spec.hidden)))
    for index, layer in enumerate(spec.layers):
        theirs, ours = _prefixes(index)
        weights[ours + "attention_norm"] = weight(Source(theirs + "input_layernorm.weight", hidden))
        weights[ours + "mlp_norm"] = weight(Source(theirs + "post_attention_layernorm.weight", hidden))
        for name, operand in _attention(layer.attention, spec.hidden, theirs + "self_attn.").items():
            weights[ours + name] = operand
    return weights


def dense(spec: ModelSpec, prefix: str) -> dict[str, Weight]:
    """The SwiGLU blocks of the layers that have one, under `prefix` within the layer."""
    weights = {}
    for index, layer in enumerate(spec.layers):
        if isinstance(layer.mlp, MlpSpec):
            theirs, ours = _prefixes(index)
            for name, operand in _gated(layer.mlp, spec.hidden, theirs + prefix).items():
                weights[ours + name] = operand
    return weights


def experts(spec: ModelSpec, prefix: str, names: tuple[str, str, str], fused: str = "") -> dict[str, Weight]:
    """The routed experts of the layers that have them: `names` are gate, up and down of one expert.

    Published checkpoints hold each expert's matrices under `prefix`; a module saved as it is in memory holds them
    stacked, under `fused` (the same prefix unless given).
    """
    weights = {}
    for index, layer in enumerate(spec.layers):
        if isinstance(layer.mlp, MoeSpec):
            theirs, ours = _prefixes(index)
            stacked = theirs + (fused or prefix)
            for name, operand in _experts(layer.mlp, spec.hidden, theirs + prefix, names, stacked).items():
                weights[ours + name] = operand
    return weights


def _prefixes(index: int) -> tuple[str, str]:
    return f"model.layers.{index}.", f"layers.{index}."


def _attention(spec: AttentionSpec, hidden: int, prefix: str) -> dict[str, Weight]:
    rows = {"q": spec.heads * spec.head_dim, "k": spec.kv_heads * spec.head_dim, "v": spec.kv_heads * spec.head_dim}
    weights = {
        "qkv": weight(*(Source(f"{prefix}{one}_proj.weight", (count, hidden)) for one, count in rows.items())),
        "out": weight(Source(prefix + "o_proj.weight", (hidden, rows["q"]))),
    }
    if spec.qkv_bias:
        weights["qkv_bias"] = weight(*(Source(f"{prefix}{one}_proj.bias", (count,)) for one, count in rows.items()))
    if spec.out_bias:
        weights["out_bias"] = weight(Source(prefix + "o_proj.bias", (hidden,)))
    if spec.head_norm:
        weights["q_norm"] = weight(Source(prefix + "q_norm.weight", (spec.head_dim,)))
        weights["k_norm"] = weight(Source(prefix + "k_norm.weight", (spec.head_dim,)))
    return weights


def _gated(spec: MlpSpec, hidden: int, prefix: str) -> dict[str, Weight]:
    both = ("gate_proj", "up_proj")
    weights = {
        "gate_up": weight(*(Source(f"{prefix}{name}.weight", (spec.width, hidden)) for name in both)),
        "down": weight(Source(prefix + "down_proj.weight", (hidden, spec.width))),
    }
    if spec.bias:
        weights["gate_up_bias"] = weight(*(Source(f"{prefix}{name}.bias", (spec.width,)) for name in both))
        weights["down_bias"] = weight(Source(prefix + "down_proj.bias", (hidden,)))
    return weights


def _experts(spec: MoeSpec, hidden: int, prefix: str, names: tuple[str, str, str], fused: str) -> dict[str, Weight]:
    gate, up, down = names
    router, gate_up, downs = (
        (spec.experts, hidden),
        (spec.experts, 2 * spec.width, hidden),
        (spec.experts, hidden, spec.width),
    )
    each = [f"{prefix}experts.{expert}." for expert in range(spec.experts)]
    return {
        "router": Weight(
            router, tuple((Source(f"{place}gate.weight", router),) for place in dict.fromkeys((prefix, fused)))
        ),
        "experts_gate_up": Weight(
            gate_up,
            (
                tuple(Source(f"{one}{name}.weight", (spec.width, hidden)) for one in each for name in (gate, up)),
                (Source(f"{fused}experts.gate_up_proj", gate_up),),
            ),
        ),
        "experts_down": Weight(
            downs,
            (
                tuple(Source(f"{one}{down}.weight", (hidden, spec.width)) for one in each),
                (Source(f"{fused}experts.down_proj", downs),),
            ),
        ),
    }
