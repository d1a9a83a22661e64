"""A model as data: what a decoder must compute, layer by layer, and where its weights lie in a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

RopeKind = Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding (arXiv 2104.09864) and how its frequencies are stretched for long contexts."""

    kind: RopeKind
    theta: float
    dim: int
    """Dimensions of a head that are rotated, from the first on; even."""
    max_position: int
    """`max_position_embeddings` of the config."""
    factor: float = 1.0
    original: int = 0
    """Context of the pretraining, in tokens (yarn, llama3, longrope)."""
    attention_factor: float = 1.0
    """cos and sin are multiplied by it (yarn, longrope)."""
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """Grouped-query attention: `heads` query heads share `kv_heads` key and value heads."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    """A query sees this many latest tokens, itself included; 0: all."""
    qkv_bias: bool = False
    out_bias: bool = False
    head_norm: bool = False
    """Queries and keys are RMS-normed head by head before the rotation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpSpec:
    """A dense SwiGLU block."""

    width: int
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeSpec:
    """A mixture of SwiGLU experts: softmax over all router logits, then the `active` largest."""

    experts: int
    active: int
    width: int
    renormalise: bool
    """The chosen experts' weights are scaled to sum to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One decoder layer: norm, attention, residual, norm, feed-forward, residual."""

    attention: AttentionSpec
    mlp: MlpSpec | MoeSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only transformer with RMS norms before each block and before the head."""

    architecture: str
    vocab: int
    hidden: int
    norm_eps: float
    tied: bool
    """The head is the embedding table."""
    rope: RopeSpec
    layers: tuple[LayerSpec, ...]
    eos: tuple[int, ...] = ()
    """End-of-sequence ids that the config names."""

    @property
    def context(self) -> int:
        """Most tokens of a sequence by the model's own account."""
        rope = self.rope
        stretched = {"linear": rope.max_position, "yarn": rope.original}.get(rope.kind, 0) * rope.factor
        return max(rope.max_position, int(stretched))

    @property
    def experts(self) -> int:
        """Routed experts a layer, 0 for a dense model."""
        return max((layer.mlp.experts for layer in self.layers if isinstance(layer.mlp, MoeSpec)), default=0)

    @property
    def experts_per_token(self) -> int:
        return max((layer.mlp.active for layer in self.layers if isinstance(layer.mlp, MoeSpec)), default=0)


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor of the checkpoint."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """An operand of the decoder: checkpoint tensors stacked along their first axis, seen in `shape`.

    `layouts` are the ways in which checkpoints store it; the first whose first tensor is there is read.
    """

    shape: tuple[int, ...]
    layouts: tuple[tuple[Source, ...], ...]

    def __post_init__(self) -> None:
        for sources in self.layouts:
            assert sum(prod(source.shape) for source in sources) == prod(self.shape), (self.shape, sources)


def weight(*sources: Source) -> Weight:
    """A weight with one layout, its tensors stacked along the first axis."""
    first = sources[0].shape
    return Weight((sum(source.shape[0] for source in sources), *first[1:]), (sources,))
