"""How drafted tokens become tokens: the accept rule of speculative decoding. Pure.

A draw here is a function of its row alone: of that row's logits, the sequence's parameters, its seed and the position
(an exponential race, see `tiergate.kernels.sample`). The logits of a drafted row are those of the plain run as long as
every draft before it is the token that the plain run has there. So the rule is the simplest there is: the target draws
every row for itself, and drafts are right as far as they are what it drew. What comes out is the very stream of the
plain run, token for token, greedy or sampled, and not only one of the same distribution, as the rejection rule of
Leviathan et al. (arXiv 2211.17192) gives.

Nothing is lost against that rule where drafts are guessed from text: a token of probability p under the target is right
with probability p under either. Drafts of another model should be drawn with the target's own noise, that is with its
seed and the same position. Two such races agree with probability (1 - d) / (1 + d) or more, d the total variation
distance of their distributions; the rejection rule has 1 - d (Daliri, Musco, Suresh, arXiv 2408.07978).
"""

from __future__ import annotations

from collections.abc import Sequence


def accept(drafts: Sequence[int], drawn: Sequence[int | None]) -> int:
    """How many tokens of `drawn` count: those drawn behind right drafts, and the first that no draft foresaw.

    `drawn[i]` was drawn behind `drafts[:i]`, None where the logits were unusable; 1 or more, at most one more than
    drafts. 1 or more.
    """
    count = 1
    for draft, token in zip(drafts, drawn[:-1], strict=False):
        if draft != token:
            break
        count += 1
    return count
