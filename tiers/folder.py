"""A model folder with its facts, and the `tiergate.json` that keeps them.

`tiergate.json` is written last, so a folder that has one is whole. It records the size and SHA-256 of every other
file: sizes are compared whenever the model is looked up, digests on request.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tiergate.engine import Progress

from .errors import ModelMissing

MANIFEST = "tiergate.json"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """How a model thinks, all texts as its tokenizer spells them. Empty strings: it does not."""

    enabled: bool = False
    """It thinks first unless a request says otherwise."""
    opener: str = ""
    closer: str = ""
    handoff: str = ""
    """The sentence forced when a thought is cut, before the closer."""
    after: str = ""
    """What stands between the closer and the answer."""
    budget: int = 0
    """Thinking tokens when nobody says anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFact:
    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFolder:
    """A model ready to be served: a Hugging Face style folder and what `tiergate.json` says of it."""

    name: str
    path: Path
    display_name: str
    license: str = ""
    source: str = ""
    """Where it comes from, in words."""
    thinking: Thinking = field(default_factory=Thinking)
    files: Mapping[str, FileFact] = field(default_factory=dict)
    revision: int = 0
    """Of the recipe that made it; 0 for a model that was only registered."""
    precision: str = ""
    """What `auto` is for it, by measurement; empty: nobody has measured it."""

    @property
    def tokenizer(self) -> Path:
        return self.path / "tokenizer.json"

    @property
    def bytes(self) -> int:
        return sum(fact.bytes for fact in self.files.values())


def to_json(model: ModelFolder) -> dict[str, Any]:
    """The content of `tiergate.json`: everything but the path, which moves with the folder."""
    return {
        "name": model.name,
        "display_name": model.display_name,
        "license": model.license,
        "source": model.source,
        "revision": model.revision,
        "precision": model.precision,
        "thinking": asdict(model.thinking),
        "files": {name: asdict(fact) for name, fact in sorted(model.files.items())},
    }


def from_json(raw: Any, path: Path) -> ModelFolder:
    """The opposite of `to_json`. Raises `ModelMissing` when `raw` is not such a value."""
    try:
        return ModelFolder(
            name=str(raw["name"]),
            path=path,
            display_name=str(raw["display_name"]),
            license=str(raw["license"]),
            source=str(raw["source"]),
            thinking=Thinking(**raw["thinking"]),
            files={str(name): FileFact(**fact) for name, fact in raw["files"].items()},
            revision=int(raw["revision"]),
            precision=str(raw.get("precision", "")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelMissing(f"the facts of the model at {path} are damaged") from error


def read_folder(path: Path) -> ModelFolder:
    """The model in a folder with a `tiergate.json`. Raises `ModelMissing` when that is absent or damaged."""
    return from_json(read_json(path / MANIFEST), path)


def read_json(path: Path) -> Any:
    """Raises `ModelMissing` when `path` cannot be read or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelMissing(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ModelMissing(f"{path} is damaged") from error


def write_json(path: Path, value: Any) -> None:
    """Write through a temporary file, so that a reader finds the old content or the whole new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(path)


def clear(folder: Path) -> None:
    """Make `folder` exist and be empty, whatever was in it."""
    discard(folder)
    folder.mkdir(parents=True)


def discard(folder: Path) -> None:
    """Delete a folder, its `tiergate.json` first: from then on it counts as no model. Absent ones are fine."""
    (folder / MANIFEST).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def seal(model: ModelFolder, progress: Progress) -> ModelFolder:
    """Declare a folder whole: record all of its files in its `tiergate.json`. Raises `OSError`."""
    names = sorted(path.name for path in model.path.iterdir() if path.is_file() and path.name != MANIFEST)
    sealed = replace(model, files=fingerprint(model, names, progress))
    write_json(model.path / MANIFEST, to_json(sealed))
    return sealed


def fingerprint(model: ModelFolder, names: Collection[str], progress: Progress) -> dict[str, FileFact]:
    """Size and digest of these files of the model. Raises `OSError`."""
    progress.begin(f"checking {model.name}", sum((model.path / name).stat().st_size for name in names))
    facts = {}
    for name in names:
        digest, size = hashlib.sha256(), 0
        with (model.path / name).open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                progress.advance(len(chunk))
        facts[name] = FileFact(sha256=digest.hexdigest(), bytes=size)
    return facts


def wrong_sizes(model: ModelFolder) -> list[str]:
    """What is missing or of another size than recorded, one sentence a file. Reads no file."""
    found = []
    for name, fact in model.files.items():
        try:
            size = (model.path / name).stat().st_size
        except OSError:
            found.append(f"{name} is missing")
        else:
            if size != fact.bytes:
                found.append(f"{name} has {size} bytes instead of {fact.bytes}")
    return found


def wrong_digests(model: ModelFolder, progress: Progress) -> list[str]:
    """What differs from the recorded digests, one sentence a file. Reads every file whole."""
    found = wrong_sizes(model)
    if found:
        return found
    actual = fingerprint(model, model.files, progress)
    return [f"{name} has changed" for name, fact in model.files.items() if actual[name] != fact]
