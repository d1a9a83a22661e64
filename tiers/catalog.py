"""Which models there are on this machine, by name.

Under `root`: `models/<name>/` holds folders that the catalog made itself, `registered/<name>.json` the facts and the
path of folders that lie elsewhere, `downloads/` what was fetched. Every change happens under a file lock, so that
several processes can share a catalog; readers need none, because each fact is one file that is replaced as a whole.
"""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tiergate.engine import ModelError, PrecisionCheck, Progress, Silent, choose_precision, convert_gguf

from . import embedded
from .errors import ModelMissing
from .evaluation import evaluate
from .folder import (
    MANIFEST,
    ModelFolder,
    clear,
    discard,
    fingerprint,
    from_json,
    read_folder,
    read_json,
    seal,
    to_json,
    write_json,
    wrong_digests,
    wrong_sizes,
)
from .foreign import describe

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,95}", re.IGNORECASE)


class Catalog:
    """The models under one root folder, which need not exist yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._models = root / "models"
        self._registered = root / "registered"
        self._downloads = root / "downloads"

    def names(self) -> Sequence[str]:
        """The names of all models, whole or not, in order."""
        made = {path.parent.name for path in self._models.glob(f"*/{MANIFEST}")}
        return sorted(made | {path.stem for path in self._registered.glob("[!.]*.json")})

    def list(self) -> list[ModelFolder]:
        """All models by name, also those whose files have changed since; unreadable entries are left out."""
        found = []
        for name in self.names():
            try:
                found.append(self._entry(name))
            except ModelMissing:
                continue
        return found

    def resolve(self, name_or_path: str) -> ModelFolder:
        """The model of this name, or in the folder of this path; its files are there, in their recorded sizes.

        Raises `ModelMissing` with advice when there is none, or when it is not whole.
        """
        path = Path(name_or_path).expanduser()
        if name_or_path in self.names():
            model = self._entry(name_or_path)
        elif _looks_like_path(name_or_path) and path.is_dir():
            path = path.resolve()
            model = read_folder(path) if (path / MANIFEST).exists() else describe(path, path.name)[0]
        else:
            raise ModelMissing(f"no model {name_or_path!r}; {self._advice(name_or_path)}")
        if wrong := wrong_sizes(model):
            raise ModelMissing(f"the model {model.name} is damaged: {wrong[0]}; {self._advice(model.name)}")
        return model

    def has_embedded(self) -> bool:
        """Whether both embedded models are there, whole, and of the recipe's present revision."""
        return all(embedded.is_current(self._models / name) for name in (embedded.FAST, embedded.DEEP))

    def pull_embedded(self, progress: Progress | None = None) -> tuple[ModelFolder, ModelFolder]:
        """Make the embedded pair where it is missing or of an older revision; what is whole already is kept.

        Raises `ModelMissing` when the download fails or the disk is full.
        """
        with self._locked():
            try:
                embedded.make_pair(self._models, self._downloads, progress or Silent())
            except (OSError, ModelError) as error:
                raise ModelMissing(f"the embedded models could not be made: {error}") from error
        return self.resolve(embedded.FAST), self.resolve(embedded.DEEP)

    def add(self, path: Path, name: str | None = None, progress: Progress | None = None) -> ModelFolder:
        """Register a Hugging Face style folder where it lies, or convert a GGUF file into the catalog.

        `name` defaults to the folder's or file's. Raises `ModelMissing` when it is not a model that the engine can
        load, or when the name is taken or not of letters, digits, `.`, `_` and `-`.
        """
        path = path.expanduser().resolve()
        name = name or (path.name if path.is_dir() else path.stem)
        if not _NAME.fullmatch(name):
            raise ModelMissing(f"{name!r} cannot be a model's name: letters, digits, '.', '_' and '-' only")
        with self._locked():
            if name in self.names() or name in (embedded.FAST, embedded.DEEP):
                raise ModelMissing(f"there is a model {name} already; choose another name or remove it first")
            try:
                if path.is_dir():
                    return self._register(path, name, progress or Silent())
                return self._convert(path, name, progress or Silent())
            except (ModelError, OSError) as error:
                raise ModelMissing(str(error)) from error

    def remove(self, name: str) -> None:
        """Forget a model; a folder that the catalog made is deleted, one that was registered is left alone.

        Raises `ModelMissing` when there is none of this name.
        """
        with self._locked():
            if name not in self.names():
                raise ModelMissing(f"no model {name!r}; {self._advice(name)}")
            (self._registered / f"{name}.json").unlink(missing_ok=True)
            discard(self._models / name)

    def verify(self, name: str, progress: Progress | None = None) -> Sequence[str]:
        """Read every file of a model and compare digests: what is wrong, one sentence a file, empty if nothing is.

        Raises `ModelMissing` when there is none of this name.
        """
        if name not in self.names():
            raise ModelMissing(f"no model {name!r}; {self._advice(name)}")
        try:
            return wrong_digests(self._entry(name), progress or Silent())
        except (ModelMissing, OSError) as error:
            return [str(error)]

    def check(self, name: str, progress: Progress | None = None) -> tuple[ModelFolder, Sequence[PrecisionCheck]]:
        """Measure what each precision makes of a model, and record which of them `auto` is from now on.

        Raises `ModelMissing` when there is none of this name, or it cannot be measured here.
        """
        model = self.resolve(name)
        checks = evaluate(model.path, progress or Silent())
        model = replace(model, precision=choose_precision(checks))
        registered = self._registered / f"{name}.json"
        with self._locked():
            if registered.exists():
                write_json(registered, {**to_json(model), "path": str(model.path)})
            elif name in self.names():
                write_json(model.path / MANIFEST, to_json(model))
        return model, checks

    def _register(self, path: Path, name: str, progress: Progress) -> ModelFolder:
        described, files = describe(path, name)
        if (path / MANIFEST).exists():
            described = replace(read_folder(path), name=name)
        model = replace(described, files=fingerprint(described, files, progress))
        self._registered.mkdir(parents=True, exist_ok=True)
        write_json(self._registered / f"{name}.json", {**to_json(model), "path": str(path)})
        return model

    def _convert(self, path: Path, name: str, progress: Progress) -> ModelFolder:
        folder = self._models / name
        clear(folder)
        try:
            convert_gguf(path, folder, progress=progress)
            described, _ = describe(folder, name)
            return seal(replace(described, source=f"converted from {path.name}"), progress)
        except BaseException:
            discard(folder)
            raise

    def _entry(self, name: str) -> ModelFolder:
        registered = self._registered / f"{name}.json"
        if not registered.exists():
            return replace(read_folder(self._models / name), name=name)
        raw = read_json(registered)
        path = raw.get("path") if isinstance(raw, dict) else None
        if not isinstance(path, str):
            raise ModelMissing(f"{registered} is damaged")
        return replace(from_json(raw, Path(path)), name=name)

    def _advice(self, name: str) -> str:
        if name in (embedded.FAST, embedded.DEEP):
            return "`tiergate models pull embedded` makes it"
        known = ", ".join(self.names()) or "none yet"
        return f"known: {known}; `tiergate models add PATH` adds one"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Be the only process that changes this catalog. The lock dies with its holder, so none is ever stale."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _looks_like_path(text: str) -> bool:
    """A bare word is a name, so that a folder that happens to lie in the working directory is not taken for one."""
    return text.startswith(("~", ".")) or "/" in text
