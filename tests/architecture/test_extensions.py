"""A new kind of anything is one file, dropped into its folder: no registry to edit."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from support.source import ROOMS, ROOT

POLICY = """
    from ..types import Limits

    def decide(tenant, ask):
        return Limits(max_tokens=7, hard=3, soft=None, answer_reserve=1)
"""
USE_POLICY = """
    import asyncio
    from pathlib import Path
    from tiergate.budget import Ask, Keyring, Ledger, TenantSpec, open_store

    async def main():
        tenant = Keyring({"a": TenantSpec(keys=("key",), policy="stingy")}).find("key")
        async with Ledger(open_store("memory:", folder=Path("."))) as ledger:
            grant = await ledger.reserve(tenant, Ask(prompt_tokens=1, room=100, default_max_tokens=50))
            assert grant.limits.max_tokens == 7 and grant.reserved == 8

    asyncio.run(main())
"""

STORE = """
    from .memory import MemoryStore

    def open(place, folder):
        store = MemoryStore()
        store.place = place
        return store
"""
USE_STORE = """
    from pathlib import Path
    from tiergate.budget import open_store

    assert open_store("clay:tablet", folder=Path(".")).place == "tablet"
"""

BACKEND = """
    from types import SimpleNamespace
    from ..tier import TierHealth

    async def open(name, spec, shared):
        async def close(): pass
        return SimpleNamespace(name=name, spec=spec, health=lambda: TierHealth(ready=True), close=close)
"""
USE_BACKEND = """
    import asyncio
    from tiergate.tiers import EngineSpec, TierSpec, open_tiers

    async def main():
        opened = await open_tiers({"oracle": TierSpec(kind="delphi")}, EngineSpec(), None)
        assert opened.tiers["oracle"].name == "oracle" and opened.ready()
        await opened.close()

    asyncio.run(main())
"""

ARCHITECTURE = """
    from dataclasses import replace
    from . import llama
    from .llama import weights

    def spec(config):
        return replace(llama.spec(config), architecture="tiny_parrot")
"""
USE_ARCHITECTURE = """
    import json
    from pathlib import Path
    from tiergate.engine.loader import architecture, read_spec

    config = {
        "architectures": ["TinyParrotForCausalLM"], "model_type": "tiny_parrot", "hidden_size": 32,
        "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 50, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
        "tie_word_embeddings": True, "eos_token_id": 2,
    }
    Path("config.json").write_text(json.dumps(config))
    spec = read_spec(Path("."))
    assert spec.architecture == "tiny_parrot" and len(spec.layers) == 2
    assert architecture(config).weights(spec)
"""

KERNEL = """
    def embedding(ids, table):
        return "ours"
"""
USE_KERNEL = """
    import torch
    from tiergate.kernels import backend_report, embedding

    assert embedding(torch.zeros(1, dtype=torch.int64), torch.zeros(1, 1)) == "ours"
    assert "'cpu'" in repr(backend_report("cpu"))
"""


@pytest.mark.parametrize(
    ("file", "text", "use"),
    [
        ("budget/policies/stingy.py", POLICY, USE_POLICY),
        ("budget/stores/clay.py", STORE, USE_STORE),
        ("tiers/backends/delphi.py", BACKEND, USE_BACKEND),
        ("engine/models/tiny_parrot.py", ARCHITECTURE, USE_ARCHITECTURE),
        ("kernels/cpu/embedding.py", KERNEL, USE_KERNEL),
    ],
    ids=["policy", "store", "tier", "architecture", "kernel"],
)
def test_one_file_is_enough(file: str, text: str, use: str, tmp_path: Path) -> None:
    """In a copy of the tree: without the file its use fails, with it the use succeeds."""
    home = tmp_path / "tiergate"
    for room in ROOMS:
        shutil.copytree(ROOT / room, home / room, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "use.py").write_text(dedent(use))
    (home / file).unlink(missing_ok=True)
    assert _run(tmp_path).returncode != 0
    (home / file).parent.mkdir(exist_ok=True)
    (home / file).write_text(dedent(text))
    done = _run(tmp_path)
    assert done.returncode == 0, done.stderr


def _run(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", "use.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
