"""Where peers are installed, and what is known of each."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
ROOT = TESTS.parent
TEXT = TESTS / "bench" / "text.txt"


@dataclass(frozen=True, slots=True)
class Installed:
    """What became of an installation: a version, or the reason why there is none."""

    version: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """One folder: an environment a peer, and the models in each peer's own format."""

    root: Path = ROOT / "build" / "peers"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def plain(self) -> Path:
        """The model as a folder of Hugging Face files and nothing else: some peers load every safetensors they see."""
        return self.models / "hf"

    def python(self, peer: str) -> Path:
        return self.root / peer / "bin" / "python"

    @property
    def llama_bin(self) -> Path:
        return self.root / "llamacpp" / "cmake" / "bin"

    def installed(self, peer: str) -> Installed:
        """Never raises: a peer that nobody tried to install says so."""
        try:
            return Installed(**json.loads(self._record(peer).read_text()))
        except FileNotFoundError:
            return Installed(reason="not installed: `make bench-peers` does it")

    def remember(self, peer: str, outcome: Installed) -> None:
        self._record(peer).parent.mkdir(parents=True, exist_ok=True)
        self._record(peer).write_text(json.dumps(asdict(outcome)))

    def _record(self, peer: str) -> Path:
        return self.root / peer / "installed.json"


OWN_PYTHON = Path(sys.executable)
"""The project's environment: tiergate and transformers run in it."""
