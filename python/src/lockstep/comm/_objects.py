"""Whole objects and the state of torch's modules and optimizers, from one rank to the others."""

from __future__ import annotations

import array
import io
import pickle
from typing import Any, Iterable, List, Mapping, Optional, Tuple, Union

from ..errors import SpecError
from ._operations import all_gather, broadcast_, broadcast_async_
from ._world import rank, size


def broadcast_object(obj: Any = None, root_rank: int = 0, name: Optional[str] = None, process_set: Any = None) -> Any:
    """The object of the rank `root_rank`, on every rank. It is pickled: ranks of one program trust each other."""
    text = pickle.dumps(obj) if rank() == root_rank else b""
    length = array.array("q", [len(text)])
    broadcast_(length, root_rank, name, process_set)
    content = array.array("B", text if rank() == root_rank else bytes(length[0]))
    broadcast_(content, root_rank, name)
    return obj if rank() == root_rank else pickle.loads(content.tobytes())


def allgather_object(obj: Any, name: Optional[str] = None, process_set: Any = None) -> List[Any]:
    """The objects of all ranks, by rank. They are pickled."""
    text = array.array("B", pickle.dumps(obj))
    lengths = all_gather(array.array("q", [len(text)]), name, process_set)
    stream = io.BytesIO(all_gather(text, name).tobytes())
    return [pickle.loads(stream.read(length)) for length in lengths]


Parameters = Union[Mapping[str, Any], Iterable[Tuple[str, Any]]]


def broadcast_parameters(params: Parameters, root_rank: int = 0) -> None:
    """Every rank has the parameters of the rank `root_rank`.

    params  a module's state_dict(), or its named_parameters(): tensors, or NumPy arrays
    """
    if isinstance(params, Mapping):
        named = sorted(params.items())
    else:
        named = list(params)
        if any(not isinstance(one, tuple) or len(one) != 2 for one in named):
            raise SpecError("broadcast_parameters takes a state_dict(), or named_parameters()")
    arrays = [(name, value) for name, value in named if hasattr(value, "shape")]
    _require_alike([(name, tuple(value.shape), str(value.dtype)) for name, value in arrays], "broadcast_parameters")
    handles = [broadcast_async_(value, root_rank, name) for name, value in arrays]
    for handle in handles:
        handle.wait()


def _require_alike(description: List[Tuple[str, Tuple[int, ...], str]], what: str) -> None:
    """Said before memory of unlike sizes meets."""
    of_all = allgather_object(description)
    for other, theirs in enumerate(of_all):
        if theirs != of_all[0]:
            first = next((f"{a} and {b}" for a, b in zip(of_all[0], theirs) if a != b),
                         f"{len(of_all[0])} and {len(theirs)} tensors")
            raise SpecError(f"{what}: ranks 0 and {other} hold unlike tensors: {first}; build the same module on all ranks")


def broadcast_optimizer_state(optimizer: Any, root_rank: int = 0) -> None:
    """Every rank has the state and the settings of the optimizer of the rank `root_rank`."""
    if size() == 1:
        return
    mine = optimizer.state_dict() if rank() == root_rank else None
    tensors: List[Any] = []
    skeleton = broadcast_object(_without_tensors(mine, tensors) if mine is not None else None, root_rank)
    shapes = broadcast_object([(list(one.shape), str(one.dtype).replace("torch.", "")) for one in tensors], root_rank)
    if rank() != root_rank:
        import torch

        tensors = [torch.empty(shape, dtype=getattr(torch, dtype)) for shape, dtype in shapes]
    held = [one.detach() for one in tensors]
    for handle in [broadcast_async_(one, root_rank) for one in held]:
        handle.wait()
    if rank() != root_rank:
        optimizer.load_state_dict(_with_tensors(skeleton, held))  # to the devices of its parameters


class _Tensor:
    """Stands for the n-th tensor of a state."""

    def __init__(self, number: int) -> None:
        self.number = number


def _without_tensors(value: Any, tensors: List[Any]) -> Any:
    if hasattr(value, "data_ptr"):
        tensors.append(value)
        return _Tensor(len(tensors) - 1)
    if isinstance(value, dict):
        return {key: _without_tensors(one, tensors) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_without_tensors(one, tensors) for one in value)
    return value


def _with_tensors(value: Any, tensors: List[Any]) -> Any:
    if isinstance(value, _Tensor):
        return tensors[value.number]
    if isinstance(value, dict):
        return {key: _with_tensors(one, tensors) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_with_tensors(one, tensors) for one in value)
    return value
