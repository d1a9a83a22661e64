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
        theirs, ours = f"model.layers.{index}.", f"layers.{index}."
        weights[ours + "attention_norm"] = weight(Source(theirs + "input_layernorm.weight", hidden))
        weights[ours + "mlp_norm"] = weight(Source(theirs + "post_attention_layernorm.weight", hidden))
        for name, operand in _attention(layer.attention, spec.hidden, theirs + "self_attn.").items():
            weights[ours + name] = operand
    return weights


def dense(spec: MlpSpec, hidden: int, prefix: str) -> dict[str, Weight]:
    """A SwiGLU block: gate above up, and down."""
    weights = {
        "gate_up": weight(
            Source(prefix + "gate_proj.weight", (spec.width, hidden)),
            Source(prefix + "up_proj.weight", (spec.width, hidden)),
        ),
        "down": weight(Source(prefix + "down_proj.weight", (hidden, spec.width))),
    }
    if spec.bias:
        weights["gate_up_bias"] = weight(
            Source(prefix + "gate_proj.bias", (spec.width,)), Source(prefix + "up_proj.bias", (spec.width,))
        )
        weights["down_bias"] = weight(Source(prefix + "down_proj.bias", (hidden,)))
    return weights


def experts(spec: MoeSpec, hidden: int, prefix: str, names: tuple[str, str, str], fused: str = "") -> dict[str, Weight]:
    """Routed experts under `prefix`: `names` are gate, up and down of one expert, `fused` the prefix of stacked ones.

    Checkpoints on disk hold a tensor for each expert's matrix; a module saved as it is in memory holds them stacked.
    """
    gate, up, down = names
    fused = fused or prefix
    count, width = spec.experts, spec.width
    each = [f"{prefix}experts.{expert}." for expert in range(count)]
    gate_up = tuple(Source(f"{one}{name}.weight", (width, hidden)) for one in each for name in (gate, up))
    downs = tuple(Source(f"{one}{down}.weight", (hidden, width)) for one in each)
    router = (count, hidden)
    return {
        "router": Weight(router, tuple((Source(f"{p}gate.weight", router),) for p in dict.fromkeys((prefix, fused)))),
        "experts_gate_up": Weight(
            (count, 2 * width, hidden),
            (gate_up, (Source(f"{fused}experts.gate_up_proj", (count, 2 * width, hidden)),)),
        ),
        "experts_down": Weight(
            (count, hidden, width), (downs, (Source(f"{fused}experts.down_proj", (count, hidden, width)),))
        ),
    }


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
