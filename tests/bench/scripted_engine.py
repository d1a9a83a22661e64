"""Benchmark worker: an engine that answers from a script, in a process of its own so that its work is not measured.

Arguments: address, tokenizer.json, tokens a step, seconds a step. Every request gets the shipped text, cut at its
`max_tokens`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tokenizers import Tokenizer

from fakes.engine import FakeEngine, Script, lane_info

TEXT = Path(__file__).resolve().parent / "text.txt"


def main() -> None:
    address, tokenizer_file, per_step, step = sys.argv[1:]
    tokenizer = Tokenizer.from_file(tokenizer_file)
    ids = tokenizer.encode(TEXT.read_text()).ids
    script = Script(ids=ids, per_step=int(per_step))
    vocab = tokenizer.get_vocab_size()
    lanes = {name: lane_info(name, vocab=vocab, eos=(2,), context=8192) for name in ("fast", "deep")}
    FakeEngine(lanes, lambda _: script, step=float(step), address=address).run()


if __name__ == "__main__":
    main()
