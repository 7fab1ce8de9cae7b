"""Arrays and tensors as one safetensors file: what `data: {kind: tensors}` reads."""

from __future__ import annotations

import json
import pathlib
from typing import Any, Dict, Iterable, List, Mapping, Tuple

from .errors import SpecError

# safetensors' names for the dtypes of NumPy and torch, by their own names.
_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
           "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"}


def from_data(data: Any) -> Dict[str, Any]:
    """Name to array, the target last.

    data   (inputs..., target): arrays or tensors whose first dimension counts the samples; a dict of such, the target
           last; a DataLoader, whose batches are put together; or any iterable of samples (inputs..., target)
    """
    if isinstance(data, Mapping):
        return _checked({str(name): value for name, value in data.items()})
    if isinstance(data, (tuple, list)) and len(data) >= 2 and _is_array(data[0]):
        rows = data[0].shape[0]
        columns = [_column(one) if isinstance(one, list) and len(one) == rows else one for one in data]
        if all(_is_array(one) for one in columns):
            return _named(columns)
    if not hasattr(data, "__iter__") and not hasattr(data, "__getitem__"):
        raise SpecError(f"data is a path, a map with `kind`, arrays (inputs, target) or an iterable of samples, "
                        f"not {type(data).__name__}")
    batched = type(data).__name__ == "DataLoader"
    rows = [tuple(one) if isinstance(one, (tuple, list)) else (one,) for one in _items(data)]
    if not rows or any(len(row) != len(rows[0]) for row in rows) or len(rows[0]) < 2:
        raise SpecError("every sample of data is (inputs..., target), all with as many parts; there must be one at least")
    return _named([_joined(list(column), batched) for column in zip(*rows)])


def _items(data: Any) -> Iterable[Any]:
    # A Dataset of torch counts and indexes; Python's own protocol for that ends at an IndexError which it may not raise.
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return (data[index] for index in range(len(data)))
    return iter(data)


def _column(values: List[Any]) -> Any:
    """A list of numbers or names, one for each sample, as an array."""
    import numpy

    return numpy.asarray(values)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and len(value.shape) > 0


def _named(columns: List[Any]) -> Dict[str, Any]:
    names = ["inputs"] if len(columns) == 2 else [f"inputs{index}" for index in range(len(columns) - 1)]
    return _checked(dict(zip([*names, "target"], columns)))


def _checked(tensors: Dict[str, Any]) -> Dict[str, Any]:
    counts = {name: int(value.shape[0]) for name, value in tensors.items() if _is_array(value)}
    if len(tensors) < 2 or len(counts) != len(tensors):
        raise SpecError("data needs inputs and a target, each an array with one row per sample")
    if len(set(counts.values())) != 1 or 0 in counts.values():
        raise SpecError(f"the arrays of data have unlike numbers of samples: {counts}")
    return tensors


def _joined(parts: List[Any], batched: bool) -> Any:
    if hasattr(parts[0], "detach"):
        import torch

        return torch.cat(parts) if batched else torch.stack(parts)
    import numpy

    arrays = [numpy.asarray(part) for part in parts]
    return numpy.concatenate(arrays) if batched else numpy.stack(arrays)


def _raw(name: str, value: Any) -> Tuple[str, List[int], Any]:
    """(safetensors' dtype, shape, bytes)"""
    dtype = str(value.dtype).replace("torch.", "")
    if dtype not in _DTYPES:
        words = dtype.startswith("<U") or dtype in ("object", "str")
        fix = ("number the classes: names, target = numpy.unique(target, return_inverse=True)" if words
               else f"use one of {', '.join(_DTYPES)}")
        raise SpecError(f"data: {name} is {'text' if words else dtype}; {fix}")
    shape = [int(size) for size in value.shape]
    if hasattr(value, "detach"):
        import torch

        flat = value.detach().cpu().contiguous().reshape(-1)
        return _DTYPES[dtype], shape, memoryview(flat.view(torch.uint8).numpy())
    import numpy

    return _DTYPES[dtype], shape, memoryview(numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8))


def write_safetensors(path: pathlib.Path, tensors: Mapping[str, Any]) -> None:
    """Whole or not at all: another process may be reading the file of that name."""
    raw = {name: _raw(name, value) for name, value in tensors.items()}
    header: Dict[str, Any] = {}
    end = 0
    for name, (dtype, shape, content) in raw.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(content)]}
        end += len(content)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    part = path.with_suffix(".part")
    with open(part, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, _, content in raw.values():
            file.write(content)
    part.replace(path)
