from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiergate.budget import TenantSpec
from tiergate.gateway.config import Explained, Settings, explain_settings, load_settings
from tiergate.gateway.errors import ConfigError
from tiergate.gateway.settings_tree import field_docs, leaves
from tiergate.tiers import TierSpec


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tests begin in a folder without a settings file."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(*, toml: str | None = None, env: dict[str, str] | None = None, flags: tuple[str, ...] = ()) -> str:
    if toml is not None:
        Path("tiergate.toml").write_text(toml)
    with pytest.raises(ConfigError) as failure:
        load_settings(env=env or {}, flags=flags)
    return str(failure.value)


def test_without_anything_it_runs_on_loopback_with_the_embedded_pair() -> None:
    settings = load_settings(env={})
    assert settings == Settings()
    assert (settings.server.host, settings.server.port) == ("127.0.0.1", 8080)
    assert {name: spec.model for name, spec in settings.tiers.items()} == {
        "fast": "smollm2-135m", "deep": "smollm2-135m-moe",
    }  # fmt: skip
    assert settings.tiers["deep"].thinking.enabled
    assert settings.ladder == ("fast", "deep")
    assert not settings.has_keys


def test_later_layers_win(elsewhere: Path) -> None:
    named = elsewhere / "mine.toml"
    named.write_text("[server]\nport = 1\nhost = 'localhost'\nstall = 2\n")
    env = {"TIERGATE_SERVER__PORT": "2", "TIERGATE_SERVER__DRAIN": "7.5", "OTHER": "x"}
    assert load_settings(named, env={}).server.port == 1
    assert load_settings(named, env=env).server.port == 2
    server = load_settings(named, env=env, flags=["server.port=3"]).server
    assert (server.port, server.host, server.drain, server.stall) == (3, "localhost", 7.5, 2.0)
    assert load_settings(env={"TIERGATE_CONFIG": str(named)}).server.port == 1


def test_the_file_of_the_working_folder_is_read(elsewhere: Path) -> None:
    (elsewhere / "tiergate.toml").write_text("[server]\nport = 9\n")
    assert load_settings(env={}).server.port == 9


def test_tables_of_tables(elsewhere: Path) -> None:
    (elsewhere / "tiergate.toml").write_text(
        """
        [tiers]
        deep = false
        [tiers.fast]
        max_tokens = 9
        [tiers.tiny]
        model = "~/tiny"
        aliases = ["mini"]
        thinking = { enabled = true, efforts = { low = 5 } }
        [tenants.alice]
        keys = ["k"]
        day_tokens = 100
        """
    )
    settings = load_settings(
        env={"TIERGATE_TIERS__TINY__KIND": "local", "TIERGATE_TENANTS__ALICE__MODELS": "fast, tiny"}
    )
    assert set(settings.tiers) == {"fast", "tiny"}
    assert settings.tiers["fast"] == dataclasses.replace(Settings().tiers["fast"], max_tokens=9)
    tiny = settings.tiers["tiny"]
    assert (tiny.model, tiny.aliases, tiny.thinking.enabled) == ("~/tiny", ("mini",), True)
    assert settings.tenants == {"alice": TenantSpec(keys=("k",), day_tokens=100, models=("fast", "tiny"))}
    assert settings.has_keys


@pytest.mark.parametrize(
    ("text", "value"),
    [("", ()), ("a", ("a",)), ("a,b , c", ("a", "b", "c")), ('["a,b"]', ("a,b",))],
)
def test_lists_in_the_environment(text: str, value: tuple[str, ...]) -> None:
    env = {"TIERGATE_SERVER__CORS_ORIGINS": text}
    assert load_settings(env=env).server.cors_origins == value


def test_other_texts_in_the_environment() -> None:
    env = {
        "TIERGATE_TIERS__DEEP__THINKING__ENABLED": "no",
        "TIERGATE_TENANTS__A__DAY_TOKENS": "",
        "TIERGATE_TENANTS__B": '{"keys": ["k"], "priority": 3}',
        "TIERGATE_ENGINE__DEVICE": "cuda:0",
    }
    settings = load_settings(env=env)
    assert not settings.tiers["deep"].thinking.enabled
    assert settings.tenants["a"].day_tokens is None
    assert settings.tenants["b"] == TenantSpec(keys=("k",), priority=3)
    assert settings.engine.device == "cuda:0"


def test_a_tier_can_be_taken_away_by_the_environment() -> None:
    assert set(load_settings(env={"TIERGATE_TIERS__DEEP": "false"}).tiers) == {"fast"}


@pytest.mark.parametrize(
    ("toml", "parts"),
    [
        ("[sever]\n", ("tiergate.toml", "'sever'", "'server'")),
        ("[server]\nprot = 1\n", ("'server.prot'", "'server.port'")),
        ("[tiers.fast]\nmodle = 'x'\n", ("'tiers.fast.modle'", "'tiers.fast.model'")),
        ("[tiers.fast.thinking]\nbugdet = 5\n", ("'tiers.fast.thinking.bugdet'", "'tiers.fast.thinking.budget'")),
        ("[server]\nqqqq = 1\n", ("'server.qqqq'", "known here", "port")),
        ("[server]\nport = 'x'\n", ("'server.port'", "a whole number", "'x'")),
        ("[server]\nport = true\n", ("'server.port'", "a whole number", "True")),
        ("[server]\nport = 1.5\n", ("'server.port'", "a whole number")),
        ("[server]\nstall = 'long'\n", ("'server.stall'", "a number")),
        ("[server]\nhost = 5\n", ("'server.host'", "text")),
        ("[server]\ncors_origins = 'x'\n", ("'server.cors_origins'", "a list")),
        ("[server]\ncors_origins = [5]\n", ("'server.cors_origins[0]'", "text")),
        ("server = 5\n", ("'server'", "a table")),
        ("tiers = 5\n", ("'tiers'", "a table of tables")),
        ("[tiers]\nfast = 5\n", ("'tiers.fast'", "false to remove it")),
        ("[tiers.fast.thinking]\nenabled = 1\n", ("true or false",)),
        ("[tiers.fast.thinking]\nbudget = 'x'\n", ("'tiers.fast.thinking.budget'", "a whole number")),
        ("[tiers.fast.thinking.efforts]\nlow = 'x'\n", ("'tiers.fast.thinking.efforts.low'", "a whole number")),
        ("[log]\nlevel = 'loud'\n", ("'log.level'", "'debug', 'info'")),
        ("[server]\nport = 70000\n", ("server.port", "65535")),
        ("[server]\nstall = 0\n", ("server.stall", "more than 0")),
        ("[server]\ndrain = -1\n", ("server.drain",)),
        ("[server]\ncors_origins = ['*']\n", ("wildcard",)),
        ("[router]\nladder = ['slow']\n", ("'slow'", "fast, deep")),
        ("[router]\nclimb_from = 0.9\n", ("router.climb_from",)),
        ("[tiers]\nfast = false\ndeep = false\n", ("at least one tier",)),
        ("[tiers.fast]\ntemperature = 3\n", ("tiers.fast.temperature", "0 to 2")),
        ("[tiers.fast]\ntop_p = nan\n", ("tiers.fast.top_p", "at most 1")),
        ("[tiers.fast]\naliases = ['deep']\n", ("'deep'", "tier 'fast'")),
        ("[tiers.fast]\naliases = ['auto']\n", ("'auto'", "the router")),
        ("[tiers.'a b']\nmodel = 'x'\n", ("tiers.a b", "letters")),
        ("port = \n", ("is not TOML",)),
    ],
)
def test_mistakes_are_named(toml: str, parts: tuple[str, ...]) -> None:
    message = refused(toml=toml)
    for part in parts:
        assert part in message


def test_mistakes_name_their_layer() -> None:
    assert refused(env={"TIERGATE_SEVER__PORT": "1"}).startswith("TIERGATE_SEVER__PORT: unknown setting 'sever'")
    assert "whole number" in refused(env={"TIERGATE_SERVER__PORT": "eighty"})
    assert "is a value, not a table" in refused(env={"TIERGATE_SERVER__PORT__X": "1"})
    assert refused(flags=("server.prot=1",)).startswith("flag server.prot: unknown setting")
    assert "key=value" in refused(flags=("server.port",))
    with pytest.raises(ConfigError, match=r"nothere\.toml: cannot be read"):
        load_settings("nothere.toml", env={})


def explained(env: dict[str, str], flags: tuple[str, ...] = ()) -> dict[str, Explained]:
    return {one.path: one for one in explain_settings(env=env, flags=flags)}


def test_every_setting_is_explained(elsewhere: Path) -> None:
    (elsewhere / "tiergate.toml").write_text("[server]\nport = 1\n[tenants.a]\nkeys = ['sk-secret']\n")
    rows = explained({"TIERGATE_TIERS__DEEP__THINKING": '{"enabled": true, "budget": 3}'}, ("log.level=error",))
    assert set(rows) >= {one.path for one in leaves(Settings())}
    assert rows["server.port"] == Explained("server.port", 1, 8080, "tiergate.toml", rows["server.port"].doc)
    assert rows["server.host"].source == "default"
    assert rows["log.level"].source == "flag log.level"
    assert rows["tiers.deep.thinking.budget"].source == "TIERGATE_TIERS__DEEP__THINKING"
    assert rows["tenants.a.keys"].value == ("***",)


def test_every_setting_has_a_docstring() -> None:
    tables = Settings(tiers={"name": TierSpec()}, tenants={"id": TenantSpec()})
    assert [one.path for one in leaves(tables) if not one.doc] == []


def test_docs_come_from_below_the_fields() -> None:
    docs = field_docs(TierSpec)
    assert docs["aliases"] == "Further model names under which clients may ask for this tier."


@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), max_size=3))
def test_flags_are_taken_or_refused_with_a_sentence(values: list[tuple[str, str]]) -> None:
    flags = [f"{key}={value}" for key, value in values]
    try:
        sentence = str(load_settings(env={}, flags=flags))
    except ConfigError as error:
        sentence = str(error)
    assert sentence


PATHS = sorted(one.path for one in leaves(Settings()))


@given(st.sampled_from(PATHS), st.text(max_size=12))
def test_any_text_for_any_setting(path: str, text: str) -> None:
    env = {"TIERGATE_" + path.upper().replace(".", "__"): text}
    try:
        paths = {one.path for one in leaves(load_settings(env=env))}
    except ConfigError as error:
        paths = set(PATHS) if path.split(".")[-1] in str(error) else set()
    assert paths == set(PATHS)
