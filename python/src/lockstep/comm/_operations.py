"""What ranks do together, on arrays. Every rank calls the same operations in the same order."""

from __future__ import annotations

import enum
import threading
from typing import Any, Callable, List, Optional, Sequence

from .. import _core
from ..errors import Fault, SpecError
from ._arrays import Family, family_of, is_float, is_reducible, reduced_as
from ._world import world


class ReduceOp(enum.Enum):
    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    ADASUM = "adasum"  # Horovod's; refused
    PRODUCT = "product"  # Horovod's; refused


Average, Sum, Min, Max = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX
Adasum, Product = ReduceOp.ADASUM, ReduceOp.PRODUCT

# The numbers are those of lockstep/comm/dtype.h.
_CODES = {ReduceOp.AVERAGE: 0, ReduceOp.SUM: 0, ReduceOp.MAX: 1, ReduceOp.MIN: 2}


class Handle:
    """An operation under way. It owns the memory that the operation works on until it is done."""

    def __init__(self, works: Sequence[_core.Work], finish: Callable[[], Any], kept: Sequence[Any], name: Optional[str]) -> None:
        self._works = list(works)
        self._finish: Optional[Callable[[], Any]] = finish
        self._kept: Any = kept
        self._name = name
        self._result: Any = None
        self._fault: Optional[Fault] = None
        _keep(self)

    def done(self) -> bool:
        """Whether it is over, successfully or not. Never blocks."""
        return all(work.done() for work in self._works)

    def wait(self) -> Any:
        """Blocks until it is over, at most until its timeout; returns the result. Raises PeerLost, TimeoutFault or Aborted."""
        if self._fault is not None:
            raise self._fault
        if self._finish is not None:
            try:
                for work in self._works:
                    work.wait()
            except Fault as fault:
                self._fault = fault if self._name is None else type(fault)(f"{self._name}: {fault}", fault.rank)
                self._fault.__cause__ = None
                raise self._fault from None
            finish, self._finish = self._finish, None
            self._result = finish()
            self._kept = None
        return self._result


# Handles that nobody waits for must not lose their memory while the operation works on it. Backward may run in threads.
_under_way: List[Handle] = []
_under_way_mutex = threading.Lock()


def _keep(handle: Handle) -> None:
    with _under_way_mutex:
        _under_way[:] = [one for one in (*_under_way, handle) if not one.done()]


def synchronize(handle: Handle) -> Any:
    """Waits for an operation that an `_async` call began, and returns its result."""
    return handle.wait()


def poll(handle: Handle) -> bool:
    """Whether it is over: synchronize() would not block."""
    return handle.done()


def _family(value: Any, group: _core.World) -> Family:
    return family_of(value, device_memory=group.backend == "nccl")


def _seconds(timeout: Optional[float]) -> float:
    if timeout is None:
        return 0.0  # the group's own
    if not timeout > 0:
        raise SpecError("a timeout is a number of seconds above 0")
    return timeout


def _reduction(average: Optional[bool], op: Optional[ReduceOp]) -> ReduceOp:
    """Horovod's two ways to say it."""
    if average is not None and op is not None:
        raise SpecError("give op= or average=, not both")
    chosen = op if op is not None else Average if average in (None, True) else Sum
    if chosen not in _CODES:
        raise SpecError(f"{getattr(chosen, 'name', chosen)} is not offered; use Average, Sum, Min or Max")
    return chosen


def _refuse_process_set(process_set: Any) -> None:
    if process_set is not None:
        raise SpecError("process sets are not offered; use group=new_group([ranks])")


def _require_reducible(dtype: str, op: ReduceOp) -> None:
    if not is_reducible(dtype):
        raise SpecError(f"{dtype} cannot be reduced; use float64, float32, float16, bfloat16, int64, int32, int16, int8 or uint8")
    if op is Average and not is_float(dtype):
        raise SpecError(f"the average of {dtype} is no {dtype}; use op=Sum, or a float dtype")


def all_reduce_async_(
    tensor: Any, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: Any = None, *,
    timeout: Optional[float] = None, group: Optional[_core.World] = None,
) -> Handle:
    """all_reduce_() that returns at once; the array must not be touched until the Handle is done."""
    _refuse_process_set(process_set)
    chosen = _reduction(average, op)
    who = group if group is not None else world()
    family = _family(tensor, who)
    dtype = family.name_of_dtype(tensor)
    _require_reducible(dtype, chosen)
    work = family.contiguous(tensor)
    if reduced_as(dtype) != dtype:
        work = family.cast(work, reduced_as(dtype))
    if prescale_factor != 1.0:
        family.scale(work, prescale_factor)
    begun = who.all_reduce(family.memory(work, as_bytes=False), _CODES[chosen], _seconds(timeout))

    def finish() -> Any:
        factor = postscale_factor / who.size if chosen is Average else postscale_factor
        if factor != 1.0:
            family.scale(work, factor)
        if not family.shares_memory(tensor, work):
            family.assign(tensor, work)
        return tensor

    return Handle([begun], finish, (work, tensor), name)


def all_reduce_async(
    tensor: Any, average: Optional[bool] = None, name: Optional[str] = None, op: Optional[ReduceOp] = None,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: Any = None, *,
    timeout: Optional[float] = None, group: Optional[_core.World] = None,
) -> Handle:
    """all_reduce() that returns at once."""
    own = _family(tensor, group if group is not None else world()).copy(tensor)
    return all_reduce_async_(own, average, name, op, prescale_factor, postscale_factor, process_set, timeout=timeout,
                             group=group)


def all_reduce_(tensor: Any, *arguments: Any, **named: Any) -> Any:
    """In place: every rank has the average (or op=Sum, Min, Max) of all arrays. Returns the array."""
    return all_reduce_async_(tensor, *arguments, **named).wait()


def all_reduce(
    tensor: Any, average: Optional[bool] = None, name: Optional[str] = None, compression: Any = None,
    op: Optional[ReduceOp] = None, prescale_factor: float = 1.0, postscale_factor: float = 1.0, process_set: Any = None,
    *, timeout: Optional[float] = None, group: Optional[_core.World] = None,
) -> Any:
    """The average (or op=Sum, Min, Max) of the arrays of all ranks, as a new one.

    A number is taken too. Gradients flow through it where the tensor needs them.
    """
    if isinstance(tensor, (int, float)):
        import array

        held = array.array("d" if isinstance(tensor, float) or _reduction(average, op) is Average else "q", [tensor])
        return all_reduce_(held, average, name, op, prescale_factor, postscale_factor, process_set, timeout=timeout,
                           group=group)[0]
    named = {"average": average, "name": name, "op": op, "prescale_factor": prescale_factor,
             "postscale_factor": postscale_factor, "process_set": process_set, "timeout": timeout, "group": group}
    if _needs_gradient(tensor):
        from ._gradients import differentiable_all_reduce

        return differentiable_all_reduce(tensor, compression, named)
    if compression is None:
        return all_reduce_async(tensor, **named).wait()  # type: ignore[arg-type]
    small, context = compression.compress(tensor)
    return compression.decompress(all_reduce_async(small, **named).wait(), context)  # type: ignore[arg-type]


def _needs_gradient(tensor: Any) -> bool:
    if not getattr(tensor, "requires_grad", False):
        return False
    import torch

    return torch.is_grad_enabled()


def _refuse_gradient(tensor: Any, what: str) -> None:
    if _needs_gradient(tensor):
        raise SpecError(f"gradients do not flow through {what}; use tensor.detach()")


def grouped_all_reduce_async(tensors: Sequence[Any], *arguments: Any, **named: Any) -> List[Handle]:
    return [all_reduce_async(tensor, *arguments, **named) for tensor in tensors]


def grouped_all_reduce_async_(tensors: Sequence[Any], *arguments: Any, **named: Any) -> List[Handle]:
    return [all_reduce_async_(tensor, *arguments, **named) for tensor in tensors]


def grouped_all_reduce(tensors: Sequence[Any], *arguments: Any, **named: Any) -> List[Any]:
    """all_reduce() of several arrays that overlap."""
    return [handle.wait() for handle in grouped_all_reduce_async(tensors, *arguments, **named)]


def grouped_all_reduce_(tensors: Sequence[Any], *arguments: Any, **named: Any) -> List[Any]:
    return [handle.wait() for handle in grouped_all_reduce_async_(tensors, *arguments, **named)]


def broadcast_async_(
    tensor: Any, root_rank: int, name: Optional[str] = None, process_set: Any = None, *,
    timeout: Optional[float] = None, group: Optional[_core.World] = None,
) -> Handle:
    """broadcast_() that returns at once."""
    _refuse_process_set(process_set)
    who = group if group is not None else world()
    if not 0 <= root_rank < who.size:
        raise SpecError(f"there is no rank {root_rank} among {who.size}")
    family = _family(tensor, who)
    work = family.contiguous(tensor)
    begun = who.broadcast(family.memory(work, as_bytes=True), root_rank, _seconds(timeout))

    def finish() -> Any:
        if who.rank != root_rank and not family.shares_memory(tensor, work):
            family.assign(tensor, work)
        return tensor

    return Handle([begun], finish, (work, tensor), name)


def broadcast_async(tensor: Any, root_rank: int, *arguments: Any, **named: Any) -> Handle:
    who = named.get("group") or world()
    _refuse_gradient(tensor, "broadcast()")
    return broadcast_async_(_family(tensor, who).copy(tensor), root_rank, *arguments, **named)


def broadcast_(tensor: Any, root_rank: int, *arguments: Any, **named: Any) -> Any:
    """In place: every rank has the array of the rank `root_rank`. Shapes and dtypes agree; any dtype."""
    return broadcast_async_(tensor, root_rank, *arguments, **named).wait()


def broadcast(tensor: Any, root_rank: int, *arguments: Any, **named: Any) -> Any:
    """The array of the rank `root_rank`, as a new one."""
    return broadcast_async(tensor, root_rank, *arguments, **named).wait()


def _row_counts(shape: List[int], dtype: str, who: _core.World, timeout: Optional[float]) -> List[int]:
    """Of all ranks; SpecError on every rank where their arrays do not fit together."""
    import array
    import zlib

    kind = zlib.crc32(repr((shape[1:], dtype)).encode())
    mine, all_of_them = array.array("q", [shape[0], kind]), array.array("q", bytes(16 * who.size))
    family = family_of(mine)
    who.all_gather(family.memory(mine, False), family.memory(all_of_them, False), _seconds(timeout)).wait()
    if any(other != kind for other in all_of_them[1::2]):
        raise SpecError(f"all_gather: this rank has rows of {shape[1:]} {dtype}, another rank has others; only the first "
                        "dimension may differ")
    return list(all_of_them[0::2])


def all_gather_async(
    tensor: Any, name: Optional[str] = None, process_set: Any = None, *,
    timeout: Optional[float] = None, group: Optional[_core.World] = None,
) -> Handle:
    """all_gather() that returns once the ranks have told each other how many rows they have."""
    _refuse_process_set(process_set)
    _refuse_gradient(tensor, "all_gather()")
    who = group if group is not None else world()
    family = _family(tensor, who)
    work = family.contiguous(tensor)
    shape = family.shape(work) or [1]
    counts = _row_counts(shape, family.name_of_dtype(work), who, timeout)
    most = max(counts)
    padded = work if shape[0] == most else family.padded(work, most)
    gathered = family.empty([who.size * most, *shape[1:]], work)
    begun = who.all_gather(family.memory(padded, as_bytes=True), family.memory(gathered, as_bytes=True), _seconds(timeout))
    pieces = [(index * most, index * most + count) for index, count in enumerate(counts)]
    return Handle([begun], lambda: family.rows(gathered, pieces, tensor), (padded, gathered, tensor), name)


def all_gather(tensor: Any, *arguments: Any, **named: Any) -> Any:
    """The arrays of all ranks, one after the other along the first dimension, which may differ between ranks."""
    return all_gather_async(tensor, *arguments, **named).wait()


def reduce_scatter(
    tensor: Any, op: Optional[ReduceOp] = None, name: Optional[str] = None, *,
    timeout: Optional[float] = None, group: Optional[_core.World] = None,
) -> Any:
    """This rank's equal share of the rows of the average (or op=Sum, Min, Max) of all arrays."""
    chosen = _reduction(None, op)
    _refuse_gradient(tensor, "reduce_scatter()")
    who = group if group is not None else world()
    family = _family(tensor, who)
    dtype = family.name_of_dtype(tensor)
    _require_reducible(dtype, chosen)
    shape = family.shape(tensor)
    if not shape or shape[0] % who.size != 0:
        raise SpecError(f"the first dimension of {shape} does not divide over {who.size} ranks")
    work = family.contiguous(tensor)
    if reduced_as(dtype) != dtype:
        work = family.cast(work, reduced_as(dtype))
    share = family.empty([shape[0] // who.size, *shape[1:]], work)
    begun = who.reduce_scatter(family.memory(work, False), family.memory(share, False), _CODES[chosen], _seconds(timeout))

    def finish() -> Any:
        if chosen is Average:
            family.scale(share, 1.0 / who.size)
        result = family.empty(family.shape(share), tensor)
        family.assign(result, share)
        return result

    return Handle([begun], finish, (work, share), name).wait()


def all_to_all(
    tensor: Any, splits: Optional[Sequence[int]] = None, name: Optional[str] = None, *,
    timeout: Optional[float] = None, group: Optional[_core.World] = None,
) -> Any:
    """Rows of this array go to the ranks in order, `splits[i]` of them to rank i (default: equal shares); returns the
    rows that came, by rank."""
    import array

    _refuse_gradient(tensor, "all_to_all()")
    who = group if group is not None else world()
    family = _family(tensor, who)
    work = family.contiguous(tensor)
    shape = family.shape(work)
    if splits is None:
        if not shape or shape[0] % who.size != 0:
            raise SpecError(f"the first dimension of {shape} does not divide over {who.size} ranks; give splits=")
        splits = [shape[0] // who.size] * who.size
    sent = [int(one) for one in splits]
    if not shape or len(sent) != who.size or sum(sent) != shape[0] or min(sent) < 0:
        raise SpecError(f"splits {sent} are not {who.size} numbers that add up to the {shape[:1]} rows")
    outgoing, incoming = array.array("q", sent), array.array("q", sent)
    counts = family_of(outgoing)
    ones = [1] * who.size
    who.all_to_all(counts.memory(outgoing, False), ones, counts.memory(incoming, False), ones, _seconds(timeout)).wait()
    row = family.item_bytes(work)
    for one in shape[1:]:
        row *= one
    result = family.empty([sum(incoming), *shape[1:]], work)
    begun = who.all_to_all(family.memory(work, True), [one * row for one in sent], family.memory(result, True),
                           [one * row for one in incoming], _seconds(timeout))
    return Handle([begun], lambda: family.rows(result, [(0, sum(incoming))], tensor), (work, result), name).wait()


def barrier(*, timeout: Optional[float] = None, group: Optional[_core.World] = None) -> None:
    """Returns when every rank has called it."""
    who = group if group is not None else world()
    who.barrier(_seconds(timeout)).wait()
