"""Python's counterparts of the C structs have the compiler's own layout."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tiergate.kernels import abi
from tiergate.kernels.dispatch import Unavailable
from tiergate.kernels.native import library
from tiergate.kernels.native_sample import CHOSEN, SAMPLING

STRUCTS = (abi.TgLinear, abi.TgLayer, abi.TgModel, abi.TgSampling, abi.TgChosen, abi.TgStep)


def layout(index: int) -> list[int]:
    try:
        core = library()
    except Unavailable as why:
        pytest.skip(str(why))
    out = (ctypes.c_int32 * 64)()
    count = core.tg_probe_layout(index, out)
    assert count > 0
    return list(out[:count])


@pytest.mark.parametrize(
    ("index", "struct"), list(enumerate(STRUCTS)), ids=lambda value: getattr(value, "__name__", "")
)
def test_structures(index: int, struct: type[ctypes.Structure]) -> None:
    offsets = [getattr(struct, name).offset for name, *_ in struct._fields_]
    assert [*offsets, ctypes.sizeof(struct)] == layout(index)


@pytest.mark.parametrize(("index", "struct"), [(3, SAMPLING), (4, CHOSEN)], ids=["sampling", "chosen"])
def test_records(index: int, struct: np.dtype[np.void]) -> None:
    assert struct.fields is not None
    offsets = [struct.fields[name][1] for name in struct.names or ()]
    assert [*offsets, struct.itemsize] == layout(index)
