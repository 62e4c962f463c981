"""Arrays as users pass them: NumPy arrays, tensors of PyTorch on any device, lists."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .validation import described


def as_array(name: str, value: Any) -> NDArray[Any]:
    """Return an array, a tensor of PyTorch on any device, or a list of them as a NumPy array.

    Tensors in half precision become float32, which is exact.

    Raises:
        ValueError: the value, which errors call `name`, is no array, or has masked values.
    """
    if isinstance(value, list | tuple) and any(hasattr(part, "ndim") for part in value):
        value = [as_array(name, part) for part in value]
    if np.ma.is_masked(value):
        raise ValueError(
            f"{name} has masked values: give what is meant there, such as -inf for a token's logit"
        )
    try:
        if hasattr(value, "detach"):  # a tensor, whose library is not imported here
            value = value.detach().to_dense().cpu()
            half = value.is_floating_point() and value.element_size() < 4
            value = (value.float() if half else value).numpy()
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{name} is {described(value)}, which is no array: {reason}") from None


def as_rows(name: str, value: Any) -> NDArray[Any]:
    """Return numbers as an array (N, V) of float32 or float64; (V,) is one row.

    Raises:
        ValueError: as of `as_array`, or the shape or type is another.
    """
    array = np.atleast_2d(as_array(name, value))
    if array.dtype.kind not in "fiu" or array.ndim != 2 or array.shape[1] == 0:
        raise ValueError(
            f"{name} is {array.dtype} {array.shape}: give numbers (steps, vocabulary), or one row"
        )
    fits_float32 = array.dtype in (np.float16, np.float32)
    return array.astype(np.float32 if fits_float32 else np.float64, copy=False)
