"""All settings as one frozen tree: defaults, then a TOML file, then `TIERGATE_*` of the environment, then flags.

This file alone reads the environment. A variable's name is the path of a setting in capitals with double underscores
between its parts: `TIERGATE_SERVER__PORT` is `server.port`. `TIERGATE_CONFIG` names the TOML file.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tiergate.budget import BudgetSpec, TenantSpec
from tiergate.tiers import EngineSpec, ThinkingSpec, TierSpec

from .errors import ConfigError
from .settings_tree import Setting, from_text, leaves, overlay, paths

PREFIX = "TIERGATE_"
FILE = "tiergate.toml"
"""Read from the working folder when no other file is named."""
TIER_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """The `[server]` table."""

    host: str = "127.0.0.1"
    """Address to listen on. Any but a loopback address needs tenants with keys."""
    port: int = 8080
    """Port to listen on; 0 takes a free one."""
    hosts: tuple[str, ...] = ()
    """Names by which this machine may be called while there are no keys, besides localhost and bare addresses."""
    reuse_port: bool = False
    """Share the port with other processes that set this too; the system spreads connections over them."""
    body_limit: int = 4 << 20
    """Largest request body, bytes."""
    body_wait: float = 30.0
    """Seconds without a further byte of a request's body after which it is given up."""
    cors_origins: tuple[str, ...] = ()
    """Web origins whose pages may call the API, as https://chat.example.com; none may by default."""
    max_choices: int = 16
    """Most choices (`n`) of one request."""
    keep_alive: float = 10.0
    """Seconds of silence in a stream after which a comment is sent to keep it open."""
    stream_buffer: int = 4096
    """Events kept for a client that reads too slowly; beyond it that client is dropped."""
    stall: float = 30.0
    """Seconds that one write may wait for a client that does not read; then it is dropped."""
    drain: float = 30.0
    """Seconds that running requests have to finish when the server is told to stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSpec:
    """The `[router]` table: how `auto` chooses."""

    ladder: tuple[str, ...] = ()
    """Tiers that `auto` chooses from, cheapest first; empty takes all in the order of their tables."""
    climb_from: float = 0.35
    """Complexity (0 to 1) from which the first tier's answer may still be overruled by the last tier."""
    deep_from: float = 0.5
    """Complexity (0 to 1) from which the last tier answers at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsSpec:
    """The `[models]` table."""

    cache: str = "~/.cache/tiergate"
    """Folder of models that were pulled or registered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpec:
    """The `[log]` table. Logs go to standard error and never hold the text of a request or an answer."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least important messages that are written."""
    format: Literal["text", "json"] = "text"
    """One line of key=value pairs or one JSON object a message."""


def embedded_tiers() -> dict[str, TierSpec]:
    """The pair that needs no download from a hub, with the sampling that its makers advise."""
    thinking = ThinkingSpec(enabled=True)
    return {
        "fast": TierSpec(model="smollm2-135m", temperature=0.2, top_p=0.9),
        "deep": TierSpec(model="smollm2-135m-moe", temperature=0.2, top_p=0.9, thinking=thinking),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    server: ServerSpec = field(default_factory=ServerSpec)
    router: RouterSpec = field(default_factory=RouterSpec)
    tiers: dict[str, TierSpec] = field(default_factory=embedded_tiers)
    engine: EngineSpec = field(default_factory=EngineSpec)
    models: ModelsSpec = field(default_factory=ModelsSpec)
    tenants: dict[str, TenantSpec] = field(default_factory=dict)
    budget: BudgetSpec = field(default_factory=BudgetSpec)
    log: LogSpec = field(default_factory=LogSpec)
    data: str = "~/.local/share/tiergate"
    """Folder of what must outlive the process, the budget books above all."""

    @property
    def ladder(self) -> tuple[str, ...]:
        """Tiers that `auto` chooses from, cheapest first."""
        return self.router.ladder or tuple(self.tiers)

    @property
    def has_keys(self) -> bool:
        return any(tenant.keys for tenant in self.tenants.values())


@dataclass(frozen=True, slots=True)
class Explained:
    """One setting with its default and the layer that set it."""

    path: str
    value: Any
    default: Any
    source: str
    doc: str


def load_settings(
    path: str | Path | None = None, env: Mapping[str, str] | None = None, flags: Sequence[str] = ()
) -> Settings:
    """Read all layers. `env` is the process's environment when None; `flags` are `key=value` texts.

    Raises `ConfigError`: a file that cannot be read, an unknown key (with the nearest known one), a wrong type, a value
    out of range. Messages name the setting, and the layer where a single one is to blame.
    """
    settings = Settings()
    for values, origin in _layers(path, os.environ if env is None else env, flags):
        settings = overlay(settings, values, origin)
    _check(settings)
    return settings


def explain_settings(
    path: str | Path | None = None, env: Mapping[str, str] | None = None, flags: Sequence[str] = ()
) -> list[Explained]:
    """Every setting with its value, default, source and meaning. Raises as `load_settings` does."""
    settings = load_settings(path, env, flags)
    sources: dict[str, str] = {}
    for values, origin in _layers(path, os.environ if env is None else env, flags):
        sources |= dict.fromkeys(paths(values), origin)
    defaults = {one.path: one.value for one in leaves(Settings())}
    return [_explain(one, defaults, sources) for one in leaves(settings)]


def _explain(setting: Setting, defaults: Mapping[str, Any], sources: Mapping[str, str]) -> Explained:
    # A table given whole, in the environment for example, names none of its leaves.
    above = setting.path.split(".")
    trail = (".".join(above[:length]) for length in range(len(above), 0, -1))
    source = next((sources[one] for one in trail if one in sources), "default")
    value, default = setting.value, defaults.get(setting.path)
    if setting.path.startswith("tenants.") and setting.path.endswith(".keys"):
        value = tuple("***" for _ in value)
    return Explained(setting.path, value, default, source, setting.doc)


def _layers(
    path: str | Path | None, env: Mapping[str, str], flags: Sequence[str]
) -> list[tuple[Mapping[str, Any], str]]:
    named = path or env.get(f"{PREFIX}CONFIG")
    layers: list[tuple[Mapping[str, Any], str]] = []
    if named or Path(FILE).is_file():
        layers.append(_read_file(Path(named or FILE)))
    for name in sorted(env):
        if name.startswith(PREFIX) and name != f"{PREFIX}CONFIG":
            keys = tuple(name.removeprefix(PREFIX).lower().split("__"))
            layers.append((from_text(Settings, keys, env[name], name), name))
    for flag in flags:
        key, equals, text = flag.partition("=")
        if not equals:
            raise ConfigError(f"{flag!r}: write a setting as key=value")
        origin = f"flag {key}"
        layers.append((from_text(Settings, tuple(key.strip().split(".")), text, origin), origin))
    return layers


def _read_file(path: Path) -> tuple[Mapping[str, Any], str]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8")), str(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None


def _check(settings: Settings) -> None:
    """What types cannot say. Raises `ConfigError`."""
    server = settings.server
    if not 0 <= server.port <= 65535:
        raise ConfigError(f"server.port must be 0 to 65535, not {server.port}")
    for name in ("body_limit", "body_wait", "max_choices", "keep_alive", "stream_buffer", "stall"):
        if not getattr(server, name) > 0:
            raise ConfigError(f"server.{name} must be more than 0, not {getattr(server, name)}")
    if server.drain < 0:
        raise ConfigError(f"server.drain must not be negative, but is {server.drain}")
    if "*" in server.cors_origins:
        raise ConfigError("server.cors_origins: name the origins; a wildcard would let every page in")
    if not 0 <= settings.router.climb_from <= settings.router.deep_from:
        raise ConfigError("router.climb_from must be at least 0 and at most router.deep_from")
    if not settings.tiers:
        raise ConfigError("tiers: at least one tier is needed")
    for name in settings.router.ladder:
        if name not in settings.tiers:
            raise ConfigError(f"router.ladder: {name!r} is none of the tiers {', '.join(settings.tiers)}")
    _check_names(settings.tiers)
    _check_sampling(settings.tiers)


def _check_sampling(tiers: Mapping[str, TierSpec]) -> None:
    for tier, spec in tiers.items():
        if not 0 <= spec.temperature <= 2:
            raise ConfigError(f"tiers.{tier}.temperature must be 0 to 2, not {spec.temperature}")
        if not 0 < spec.top_p <= 1:
            raise ConfigError(f"tiers.{tier}.top_p must be more than 0 and at most 1, not {spec.top_p}")


def _check_names(tiers: Mapping[str, TierSpec]) -> None:
    owners = {"auto": "the router"}
    for tier, spec in tiers.items():
        if not TIER_NAME.fullmatch(tier):
            raise ConfigError(f"tiers.{tier}: a tier's name is made of letters, digits, '.', '_' and '-'")
        for name in dict.fromkeys((tier, *spec.aliases)):
            if name in owners:
                raise ConfigError(f"tiers.{tier}: the name {name!r} already belongs to {owners[name]}")
            owners[name] = f"tier {tier!r}"
