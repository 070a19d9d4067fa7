"""Arrays that are written a piece at a time, because the whole may be larger than the memory of a process."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt


class ArrayWriter:
    """Writes a `.npy` file of a known shape, a run of its last axis after the other. The bytes are those of `np.save`.

    Writes, unlike a mapped file, whose changed pages stay in memory until the disk has them.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._rows, self._width, self._size = prod(shape[:-1]), shape[-1], dtype.itemsize
        self._dtype, self._done = dtype, 0
        self._stream = path.open("wb")
        head = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._stream, head)
        self._start = self._stream.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stream.close()
        assert kind is not None or self._done == self._width or not self._rows, "an array was not filled"

    def add(self, values: npt.NDArray[Any]) -> None:
        """Write the next entries of the last axis; the other axes are those of the whole."""
        count = values.shape[-1]
        for row, own in enumerate(values.reshape(self._rows, count)):
            self._stream.seek(self._start + (row * self._width + self._done) * self._size)
            self._stream.write(np.ascontiguousarray(own, self._dtype).data)
        self._done += count
