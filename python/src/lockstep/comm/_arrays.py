"""NumPy arrays, torch tensors and Python's own buffers, as the communicator needs them.

A Family knows one of them. Neither NumPy nor torch is imported unless an array of theirs comes.
"""

from __future__ import annotations

import array
from typing import Any, List, Optional, Sequence, Tuple

from ..errors import SpecError

# (address, elements, dtype, device, stream), as lockstep._core has it.
Memory = Tuple[int, int, int, int, int]

# The numbers are those of lockstep/comm/dtype.h.
_CODES = {"float64": 0, "float32": 1, "float16": 2, "bfloat16": 3, "int64": 4, "int32": 5, "uint8": 6}
_BYTES = 6  # what is only moved, goes as bytes
_REDUCED_AS = {"int8": "int32", "int16": "int32", "uint16": "int32"}
_HOST = -1


class Family:
    """One kind of arrays. Arrays that it makes are contiguous."""

    def name_of_dtype(self, value: Any) -> str:
        raise NotImplementedError

    def shape(self, value: Any) -> List[int]:
        raise NotImplementedError

    def item_bytes(self, value: Any) -> int:
        return int(value.itemsize)

    def contiguous(self, value: Any) -> Any:
        """`value` where a backend can use its memory, else a copy."""
        raise NotImplementedError

    def shares_memory(self, one: Any, other: Any) -> bool:
        return one is other

    def memory(self, value: Any, as_bytes: bool) -> Memory:
        raise NotImplementedError

    def copy(self, value: Any) -> Any:
        raise NotImplementedError

    def empty(self, shape: Sequence[int], like: Any) -> Any:
        raise NotImplementedError

    def cast(self, value: Any, dtype: str) -> Any:
        raise NotImplementedError

    def assign(self, target: Any, source: Any) -> None:
        """Into the memory of `target`, whose dtype and device are kept."""
        raise NotImplementedError

    def scale(self, value: Any, factor: float) -> None:
        raise NotImplementedError

    def padded(self, value: Any, rows: int) -> Any:
        """A copy with more rows, whatever they hold."""
        result = self.empty([rows, *self.shape(value)[1:]], value)
        result[:self.shape(value)[0]] = value
        return result

    def rows(self, value: Any, pieces: Sequence[Tuple[int, int]], like: Any) -> Any:
        """Rows begin..end of `value`, one piece after the other, where `like` lives."""
        raise NotImplementedError


def is_reducible(dtype: str) -> bool:
    return dtype in _CODES or dtype in _REDUCED_AS


def reduced_as(dtype: str) -> str:
    return _REDUCED_AS.get(dtype, dtype)


def is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= int(size)
    return count


class _NumPy(Family):
    def name_of_dtype(self, value: Any) -> str:
        return str(value.dtype.name)

    def shape(self, value: Any) -> List[int]:
        return [int(size) for size in value.shape]

    def contiguous(self, value: Any) -> Any:
        import numpy

        if value.dtype.hasobject:
            raise SpecError("an array of Python objects has no memory to send; use broadcast_object() or allgather_object()")
        if not value.dtype.isnative:
            return numpy.ascontiguousarray(value, value.dtype.newbyteorder("="))
        return value if value.flags.c_contiguous and value.flags.writeable else numpy.array(value, order="C")

    def memory(self, value: Any, as_bytes: bool) -> Memory:
        address = int(value.__array_interface__["data"][0])
        if as_bytes:
            return address, int(value.nbytes), _BYTES, _HOST, 0
        return address, int(value.size), _CODES[value.dtype.name], _HOST, 0

    def copy(self, value: Any) -> Any:
        import numpy

        return numpy.array(value, order="C")

    def empty(self, shape: Sequence[int], like: Any) -> Any:
        import numpy

        return numpy.empty(shape, like.dtype)

    def cast(self, value: Any, dtype: str) -> Any:
        return value.astype(dtype)

    def assign(self, target: Any, source: Any) -> None:
        target[...] = source.reshape(target.shape)

    def scale(self, value: Any, factor: float) -> None:
        import numpy

        numpy.multiply(value, value.dtype.type(factor), out=value)

    def rows(self, value: Any, pieces: Sequence[Tuple[int, int]], like: Any) -> Any:
        import numpy

        return numpy.concatenate([value[begin:end] for begin, end in pieces])


class _Torch(Family):
    def __init__(self, device_memory: bool) -> None:
        self._device_memory = device_memory  # the backend takes that of GPUs

    def name_of_dtype(self, value: Any) -> str:
        return str(value.dtype).replace("torch.", "")

    def shape(self, value: Any) -> List[int]:
        return [int(size) for size in value.shape]

    def contiguous(self, value: Any) -> Any:
        if value.is_sparse:
            raise SpecError("a sparse tensor cannot be sent; use to_dense()")
        here = value.detach()
        if here.device.type != "cpu" and not (here.is_cuda and self._device_memory):
            here = here.cpu()
        return here.contiguous()

    def item_bytes(self, value: Any) -> int:
        return int(value.element_size())

    def shares_memory(self, one: Any, other: Any) -> bool:
        return bool(one.device == other.device and one.data_ptr() == other.data_ptr())

    def memory(self, value: Any, as_bytes: bool) -> Memory:
        device, stream = _HOST, 0
        if value.is_cuda:
            import torch

            device, stream = int(value.device.index), int(torch.cuda.current_stream(value.device).cuda_stream)
        count = int(value.numel())
        if as_bytes:
            return int(value.data_ptr()), count * self.item_bytes(value), _BYTES, device, stream
        return int(value.data_ptr()), count, _CODES[self.name_of_dtype(value)], device, stream

    def copy(self, value: Any) -> Any:
        import torch

        return value.detach().clone(memory_format=torch.contiguous_format)

    def empty(self, shape: Sequence[int], like: Any) -> Any:
        import torch

        return torch.empty(list(shape), dtype=like.dtype, device=like.device)

    def cast(self, value: Any, dtype: str) -> Any:
        import torch

        return value.to(getattr(torch, dtype))

    def assign(self, target: Any, source: Any) -> None:
        target.detach().copy_(source.reshape(target.shape))

    def scale(self, value: Any, factor: float) -> None:
        value.mul_(factor)

    def rows(self, value: Any, pieces: Sequence[Tuple[int, int]], like: Any) -> Any:
        import torch

        return torch.cat([value[begin:end] for begin, end in pieces]).to(like.device)


class _Buffers(Family):
    """array.array, one-dimensional; what programs without NumPy have."""

    _NAMES = {"d": "float64", "f": "float32", "q": "int64", "i": "int32", "B": "uint8", "b": "int8", "h": "int16"}
    _NAMES.update({"l": f"int{8 * array.array('l').itemsize}"})

    def name_of_dtype(self, value: Any) -> str:
        return self._NAMES.get(value.typecode, value.typecode)

    def shape(self, value: Any) -> List[int]:
        return [len(value)]

    def contiguous(self, value: Any) -> Any:
        return value

    def memory(self, value: Any, as_bytes: bool) -> Memory:
        address, count = value.buffer_info()
        if as_bytes:
            return address, count * value.itemsize, _BYTES, _HOST, 0
        return address, count, _CODES[self.name_of_dtype(value)], _HOST, 0

    def copy(self, value: Any) -> Any:
        return array.array(value.typecode, value)

    def empty(self, shape: Sequence[int], like: Any) -> Any:
        return array.array(like.typecode, bytes(_count(shape) * like.itemsize))

    def cast(self, value: Any, dtype: str) -> Any:
        code = next(code for code, name in self._NAMES.items() if name == dtype)
        return array.array(code, value)

    def assign(self, target: Any, source: Any) -> None:
        target[:] = source if source.typecode == target.typecode else array.array(target.typecode, source)

    def scale(self, value: Any, factor: float) -> None:
        for index, one in enumerate(value):
            value[index] = one * factor

    def padded(self, value: Any, rows: int) -> Any:
        return value + array.array(value.typecode, bytes((rows - len(value)) * value.itemsize))

    def rows(self, value: Any, pieces: Sequence[Tuple[int, int]], like: Any) -> Any:
        result = array.array(value.typecode)
        for begin, end in pieces:
            result.extend(value[begin:end])
        return result


def family_of(value: Any, device_memory: bool = False) -> Family:
    """SpecError where it is none that we know."""
    found = _find(value, device_memory)
    if found is None:
        raise SpecError(f"{type(value).__name__} is no NumPy array, torch tensor or array.array")
    return found


def _find(value: Any, device_memory: bool) -> Optional[Family]:
    if hasattr(value, "data_ptr") and hasattr(value, "detach"):
        return _Torch(device_memory)
    if hasattr(value, "__array_interface__") and hasattr(value, "flags"):
        return _NumPy()
    if isinstance(value, array.array):
        return _Buffers()
    return None
