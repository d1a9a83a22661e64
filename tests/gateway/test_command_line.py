from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.chat_models import write_chat_model
from fakes.checkpoints import tiny_checkpoint
from tiergate.gateway.__main__ import main
from tiergate.gateway.commands.serve import refuse_public
from tiergate.gateway.config import Settings, load_settings
from tiergate.gateway.errors import ConfigError
from tiergate.gateway.settings_tree import leaves


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder, and an environment, that set nothing."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TIERGATE_")]:
        monkeypatch.delenv(name)


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for command in ("serve", "config", "models", "engine", "info"):
        assert f"    {command} " in text


def test_the_help_of_serve_shows_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    text = capsys.readouterr().out
    for one in leaves(Settings(tiers={}, tenants={})):
        assert f"  {one.path} = " in text
        assert one.doc in text
    for path in ("tiers.NAME.model", "tiers.NAME.thinking.budget", "tenants.ID.keys", "tenants.ID.day_tokens"):
        assert f"  {path} = " in text


def test_config_shows_values_defaults_and_sources(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiergate.toml").write_text("[server]\nport = 9\n[tenants.a]\nkeys = ['sk-secret']\n")
    assert main(["config", "--set", "log.level=error"]) == 0
    text = capsys.readouterr().out
    assert "server.port = 9\n    Port to listen on" in text
    assert "default: 8080; from: tiergate.toml; variable: TIERGATE_SERVER__PORT" in text
    assert 'log.level = "error"' in text
    assert "from: flag log.level" in text
    assert "tiers.deep.thinking.enabled = true" in text
    assert "sk-secret" not in text


def test_info(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["info", "--set", f"models.cache={tmp_path / 'cache'}"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("tiergate ")
    assert f"models: {tmp_path / 'cache'}" in text
    assert "tier deep: local, model smollm2-135m-moe, precision auto" in text
    assert "engine: cpu, as many as cores threads" in text
    assert "native core: " in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["config", "--set", "server.prot=1"], ("server.prot", "server.port")),
        (["config", "--set", "tenants.a.keys=sha256:12"], ("tenants.a.keys[0]", "64 hex digits")),
        (["serve", "--port", "70000"], ("server.port", "65535")),
        (["serve", "--host", "0.0.0.0"], ("0.0.0.0", "no keys")),
        (["serve", "--config", "nowhere.toml"], ("nowhere.toml", "cannot be read")),
        (["serve", "--set", "tenants.a.keys="], ("tenants.a.keys",)),
        (["engine", "--listen", "ipc://x", "--set", "tiers.fast.kind=odd", "--set", "tiers.deep=false"], ("odd",)),
    ],
)
def test_mistakes_end_with_a_sentence(
    arguments: list[str], words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    text = capsys.readouterr().err
    assert text.startswith("tiergate: ") or " tiergate: " in text
    assert "Traceback" not in text
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda data: (data.mkdir(), (data / "budget.sqlite3").write_bytes(b"no database" * 99)), "not a database"),
        (lambda data: (data.mkdir(), (data / "budget.sqlite3").mkdir()), "unable to open"),
        (lambda data: data.write_text(""), "cannot use the folder"),
    ],
)
def test_books_that_cannot_be_opened_end_it_with_a_sentence(spoil: Callable[[Path], object], words: str) -> None:
    spoil(Path("data"))
    models = ["--set", "tiers.fast.model=none", "--set", "tiers.deep=false", "--set", "models.cache=cache"]
    command = [str(Path(sys.executable).parent / "tiergate"), "serve", "--port", "0", "--set", "data=data", *models]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    *_, last = done.stderr.splitlines()
    assert last.startswith("tiergate: ")
    assert words in last


@pytest.mark.parametrize("command", [["engine", "--listen"], ["serve", "--port", "0", "--set"]])
def test_an_engine_that_cannot_start_ends_it_with_a_sentence(command: list[str], tmp_path: Path) -> None:
    model = write_chat_model(tiny_checkpoint(tmp_path / "model"))
    address = f"ipc://{tmp_path}/none/engine"
    listen = address if command[0] == "engine" else f"engine.listen={address}"
    models = ["--set", f"tiers.fast.model={model}", "--set", "tiers.deep=false", "--set", "data=data"]
    tiergate = str(Path(sys.executable).parent / "tiergate")
    done = subprocess.run([tiergate, *command, listen, *models], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    told = [line for line in done.stderr.splitlines() if "cannot bind" in line]
    assert told == [f"tiergate: the engine cannot start: cannot bind {address!r}: No such file or directory"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_this_machine_needs_no_keys(host: str) -> None:
    refuse_public(load_settings(env={}, flags=[f"server.host={host}"]))


def test_others_need_keys() -> None:
    refuse_public(load_settings(env={}, flags=["server.host=0.0.0.0", "tenants.me.keys=secret"]))
    for host in ("0.0.0.0", "::", "192.168.0.1", ""):
        with pytest.raises(ConfigError):
            refuse_public(load_settings(env={}, flags=[f"server.host={host}"]))
