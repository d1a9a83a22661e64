"""Measures a model's precisions on a text that comes with the program.

The text is chapters 3 to 5 of Jane Austen's "Persuasion" (1817), in the public domain everywhere, from Project
Gutenberg's edition as the Debian package r-cran-janeaustenr has it; lines of a paragraph are joined.
"""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from tiergate.engine import ModelError, PrecisionCheck, Progress, check_model

from .errors import ModelMissing

TEXT = Path(__file__).with_name("evaluation.txt")


def evaluate(folder: Path, progress: Progress, *, tokens: int = 10240) -> tuple[PrecisionCheck, ...]:
    """What each precision makes of the model in `folder`, on the first `tokens` tokens of the text.

    Raises `ModelMissing` where that cannot be found out.
    """
    text = TEXT.read_text(encoding="utf-8")
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        ids = tokenizer.encode(text, add_special_tokens=False).ids[:tokens]
        return check_model(folder, ids, progress=progress)
    except ModelError as why:
        raise ModelMissing(str(why)) from why
