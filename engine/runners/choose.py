"""Which runner serves a lane: the native core on a CPU, PyTorch everywhere else and for what the core lacks."""

from __future__ import annotations

import logging

from tiergate.kernels import ThreadPool, Unavailable

from ..batch import Runner
from ..config import LaneConfig
from . import cpu, torch

log = logging.getLogger(__name__)


class RunnerChooser:
    """Opens the runners of a process. Those on the native core share its threads, made for the first of them."""

    def __init__(self, threads: int) -> None:
        """`threads` compute at most; they should not outnumber the cores."""
        self._threads = threads
        self._pool: ThreadPool | None = None

    def __call__(self, config: LaneConfig, device: str) -> Runner:
        """Raises `ModelError` for a model that no runner can serve."""
        if device == "cpu":
            try:
                return self._native(config)
            except (Unavailable, cpu.Unsuited) as why:
                level = logging.INFO if config.precision == "fp32" else logging.WARNING
                log.log(level, "lane %s runs on PyTorch, not on the native core: %s", config.name, why)
        return torch.open(config, device)

    def _native(self, config: LaneConfig) -> Runner:
        cpu.check(config)
        if self._pool is None:
            self._pool = ThreadPool(self._threads)
        runner = cpu.open(config, self._pool)
        facts = runner.facts
        kernels = ", ".join(f"{kernel} {level}" for kernel, level in facts.kernels.items())
        log.info("lane %s: %s on %d threads, %s", config.name, facts.precision, facts.threads, kernels)
        return runner
