"""Rotation angles."""

from __future__ import annotations

import math

import torch

from tiergate.kernels import rope_angles


def test_angles_are_position_times_frequency() -> None:
    positions, frequencies = torch.tensor([0, 3, 1000]), torch.tensor([1.0, 0.1])
    cos, sin = rope_angles(positions, frequencies, 1.5, torch.float32)
    for row, position in enumerate(positions.tolist()):
        for column, frequency in enumerate((1.0, 0.1, 1.0, 0.1)):
            sign = -1 if column < 2 else 1
            assert math.isclose(cos[row, column], 1.5 * math.cos(position * frequency), abs_tol=1e-4)
            assert math.isclose(sin[row, column], sign * 1.5 * math.sin(position * frequency), abs_tol=1e-4)


def test_angles_are_rounded_last() -> None:
    positions, frequencies = torch.arange(4000), torch.tensor([0.37])
    wide = rope_angles(positions, frequencies, 1.0, torch.float32)
    narrow = rope_angles(positions, frequencies, 1.0, torch.bfloat16)
    assert all(torch.equal(w.bfloat16(), n) for w, n in zip(wide, narrow, strict=True))
