"""Converts arguments to the arrays that the compiled functions take; copies only if necessary."""

from __future__ import annotations

from operator import index
from typing import Any, SupportsIndex, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
IntArray = NDArray[Any]  # int32 or int64
Float = TypeVar("Float", np.float32, np.float64)


def as_spans(values: ArrayLike, name: str) -> IntArray:
    """Converts spans to a C-contiguous (n, 2) array of int32 or int64. Spans that are such an array
    already are not copied. A pyarrow column of lists of two integers is accepted, too.

    Raises: TypeError if the values are not integers, masked, or a tensor that NumPy cannot read;
        ValueError for another shape or a value beyond int64.
    """
    spans = _as_integers(values, name)
    if spans.size == 0 and spans.ndim == 1:  # an empty list
        spans = spans.reshape(0, 2)
    if spans.ndim != 2 or spans.shape[1] != 2:
        raise ValueError(f"{name}: expected shape (n, 2), [start, end) a row, got {spans.shape}")
    return _borrowable(spans)


def as_batch(
    student: ArrayLike, teacher: ArrayLike, student_cu: Any, teacher_cu: Any
) -> tuple[Any, Any, Any, Any]:
    """Converts the spans and the row boundaries of both sides for a compiled function. The spans of
    both sides get one dtype: int32 if both have it, else int64."""
    student, teacher = as_spans(student, "student_spans"), as_spans(teacher, "teacher_spans")
    if student.dtype != teacher.dtype:
        student, teacher = (spans.astype(np.int64, copy=False) for spans in (student, teacher))
    return (
        student,
        teacher,
        as_cu_seqlens(student_cu, "student_cu_seqlens"),
        as_cu_seqlens(teacher_cu, "teacher_cu_seqlens"),
    )


def as_cu_seqlens(values: ArrayLike | None, name: str) -> NDArray[np.int64] | None:
    """Converts row boundaries to contiguous int64. The compiled function checks their values."""
    if values is None:
        return None
    boundaries = _as_integers(values, name)
    if boundaries.ndim != 1:
        raise ValueError(f"{name}: expected shape (B + 1,), got {boundaries.shape}")
    return _borrowable(boundaries.astype(np.int64, copy=False))


def as_ids(values: ArrayLike) -> NDArray[np.int32]:
    """Converts token ids to contiguous int32. Raises: ValueError for ids that do not fit."""
    ids = _as_integers(values, "ids")
    if ids.ndim != 1:
        raise ValueError(f"ids: expected shape (n,), got {ids.shape}")
    if ids.dtype != np.int32 and ids.size:
        limit = np.iinfo(np.int32).max
        if ids.min() < 0 or ids.max() > limit:
            raise ValueError(f"ids: expected 0 to {limit}, got {ids.min()} to {ids.max()}")
    return _borrowable(ids.astype(np.int32, copy=False))


def as_mapping(values: ArrayLike) -> NDArray[np.int32]:
    """Converts a mapping to C-contiguous int32; copies only if necessary."""
    mapping = as_spans(values, "mapping")
    if mapping.dtype == np.int32:
        return mapping
    limits = np.iinfo(np.int32)
    if mapping.size and (mapping.min() < limits.min or mapping.max() > limits.max):
        raise ValueError(
            "mapping: its rows are beyond the range of int32; pass a mapping from vocagno.align or "
            "vocagno.chunk_map"
        )
    return mapping.astype(np.int32)


def rows_in(ranges: IntArray) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Lists all rows of (G, 2) half-open ranges, one range after the other, and returns the (G,)
    sizes of the ranges with them."""
    first, stop = ranges.astype(np.int64).T
    sizes = stop - first
    # A range's rows are consecutive, and so are their places in the list: the difference of the two
    # is one number for each range.
    return np.repeat(first - (np.cumsum(sizes) - sizes), sizes) + np.arange(sizes.sum()), sizes


def sums_in(values: NDArray[Any], ranges: IntArray) -> NDArray[np.float64]:
    """Sums values over each of (G, 2) half-open ranges, which ascend and do not overlap.

    Only the values of a range enter its sum (differences of running sums would lose the digits of
    all ranges after a huge value).
    """
    if not len(ranges):
        return np.zeros(0)
    padded = np.append(values.astype(np.float64), 0.0)  # the last range may end at the end
    # reduceat also sums the gaps between the ranges, in every second place.
    sums: NDArray[np.float64] = np.add.reduceat(padded, ranges.ravel())[::2]
    return np.where(ranges[:, 0] < ranges[:, 1], sums, 0.0)  # reduceat gives empty ranges a value


def as_losses(values: ArrayLike) -> NDArray[Any]:
    """Converts losses to contiguous float32 or float64. float16 and integers become float32; masked
    losses become NaN ("no loss")."""
    losses = _as_array(values, "losses")
    mask = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    if losses.size == 0:
        losses = losses.astype(np.float32)
    if losses.dtype not in (np.float32, np.float64):
        if losses.dtype.kind not in "fiu":
            raise TypeError(
                f"losses: expected float32 or float64, got {losses.dtype}; "
                "convert them with .astype(np.float32)"
            )
        losses = losses.astype(np.float32)
    if losses.ndim != 1:
        raise ValueError(
            f"losses: expected shape (M,), one for each teacher row, got {losses.shape}"
        )
    if mask is not None and mask.any():
        losses = np.where(mask, losses.dtype.type(np.nan), losses)
    return _borrowable(losses)


def as_floats(values: ArrayLike, kind: type[Float], name: str) -> NDArray[Float]:
    """Converts numbers to an array of the dtype `kind`; masked numbers and None become NaN.
    Raises: TypeError for complex numbers."""
    is_column = hasattr(values, "to_numpy")  # of pyarrow or pandas: NumPy makes a null NaN
    numbers = values if is_column else _as_array(values, name)
    if np.iscomplexobj(numbers):
        raise TypeError(f"{name}: expected real numbers, got complex ones")
    array = np.array(numbers, kind)
    if isinstance(values, np.ma.MaskedArray):
        array[np.ma.getmaskarray(values)] = np.nan
    return array


def as_count(value: SupportsIndex, name: str, least: int) -> int:
    """Converts a count to an int.
    Raises: TypeError if it is not an integer; ValueError below `least` or beyond int64."""
    try:
        count = index(value)
    except TypeError as error:
        raise TypeError(f"{name}: expected an integer, got {type(value).__name__}") from error
    limit = np.iinfo(np.int64).max
    if not least <= count <= limit:
        raise ValueError(f"{name}: expected {least} to {limit}, got {count}")
    return count


def _as_integers(values: ArrayLike, name: str) -> NDArray[Any]:
    """Converts values to int32 or int64 of any shape, for `as_spans` and its like."""
    if hasattr(values, "spans"):  # a TokenizedTexts instead of its arrays
        kind = type(values).__name__
        raise TypeError(f"{name}: expected an array, got {kind}; pass its .spans and .cu_seqlens")
    if isinstance(values, np.ma.MaskedArray) and np.ma.is_masked(values):
        raise TypeError(
            f"{name}: expected integers without a mask, got {values.mask.sum()} masked ones; "
            "remove them (.compressed()) or give them values (.filled(value))"
        )
    array = _as_array(values, name)
    if array.size == 0 and array.dtype.kind == "f":  # np.asarray([]) is float64
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integers, got {array.dtype}")
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name}: {array.max()} is beyond the range of int64")
    if array.dtype in (np.int32, np.int64) and array.dtype.isnative:
        return array
    return array.astype(np.int64)


def _as_array(values: ArrayLike, name: str) -> NDArray[Any]:
    """Converts values to a plain NumPy array. If it cannot read a tensor, the error says why."""
    if type(values).__module__.partition(".")[0] == "pyarrow":
        return _from_arrow(values, name)
    try:
        return np.asarray(values)
    except (TypeError, RuntimeError) as error:
        if hasattr(values, "detach") and (steps := _steps_to_numpy(values)):
            reasons, calls = " ".join(steps), "".join(steps.values())
            raise TypeError(
                f"{name}: expected numbers that NumPy can read, got a tensor {reasons}; "
                f"pass it as tensor{calls}"
            ) from error
        raise


def _steps_to_numpy(tensor: Any) -> dict[str, str]:
    """Lists why NumPy cannot read a torch tensor: each reason with the method that removes it.

    NumPy's own error names only the first reason.
    """
    is_numpy_dtype = tensor.dtype.itemsize >= 4 or str(tensor.dtype) == "torch.float16"
    steps = {
        "that requires grad": (tensor.requires_grad, ".detach()"),
        f"of {tensor.dtype}": (tensor.is_floating_point() and not is_numpy_dtype, ".float()"),
        f"on {tensor.device}": (tensor.device.type != "cpu", ".cpu()"),
    }
    return {reason: call for reason, (applies, call) in steps.items() if applies}


def _from_arrow(values: Any, name: str) -> NDArray[Any]:
    """Converts a pyarrow array or column; lists of a fixed size become rows."""
    if hasattr(values, "combine_chunks"):
        values = values.combine_chunks()
    if values.null_count:
        raise TypeError(f"{name}: expected no nulls, got {values.null_count}")
    size = getattr(values.type, "list_size", None)
    if size is None:
        return np.asarray(values)
    items = _from_arrow(values.flatten(), name)  # only the slice, unlike `.values`
    return items.reshape(len(values), size)


def _borrowable(array: NDArray[Any]) -> NDArray[Any]:
    """Returns the array itself if the compiled functions can borrow it, else a copy."""
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    return array.copy(order="C")
