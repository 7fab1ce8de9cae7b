"""DistributedOptimizer: any optimizer of torch, over gradients of all ranks.

Gradients travel in buckets that are the same on all ranks, the last parameters first, and in the same order, whatever the
order in which backward makes them. A bucket leaves as soon as it and those before it are full, so that it travels while
backward goes on. They have a group of their own: other operations of the program may come in between.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Type, Union

import torch

from .. import _core
from ..errors import SpecError
from ._operations import Average, Handle, ReduceOp, _reduction, _refuse_process_set, all_reduce_async_
from ._world import new_group
from .compression import Compression

Groups = Union[None, int, Sequence[Sequence[Any]]]  # Horovod takes a number here too


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Optional[Iterable[Tuple[str, Any]]] = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Groups = None,
    sparse_as_dense: bool = False,
    process_set: Any = None,
    *,
    bucket_mib: float = 25.0,
) -> Any:
    """The same optimizer object; its step() now waits for the gradients of all ranks. Called by all ranks.

    named_parameters          names for messages; those of the optimizer must all be among them
    compression               Compression.fp16 or bf16: smaller numbers on the way
    backward_passes_per_step  backward() so often before each step(); gradients of the passes add up
    op                        Average or Sum
    gradient_predivide_factor the average is divided by it before the sum and by the rest after it (half precision)
    num_groups, groups        so many buckets, or these lists of parameters as buckets, instead of bucket_mib
    sparse_as_dense           sparse gradients become dense; else they are refused
    """
    _refuse_process_set(process_set)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SpecError(f"{type(optimizer).__name__} is no torch.optim.Optimizer")
    if not hasattr(optimizer, "register_step_pre_hook") or not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
        raise SpecError(f"torch {torch.__version__} is too old for DistributedOptimizer; use 2.1 or later")
    if hasattr(optimizer, "_lockstep_gradients"):
        raise SpecError("this optimizer is distributed already; wrap it once")
    if _reduction(None, op) not in (ReduceOp.AVERAGE, ReduceOp.SUM):
        raise SpecError("gradients are averaged or summed; use op=Average or Sum")
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise SpecError("gradient_predivide_factor goes with op=Average")
    if backward_passes_per_step < 1 or gradient_predivide_factor <= 0 or bucket_mib <= 0 or num_groups < 0:
        raise SpecError("backward_passes_per_step, gradient_predivide_factor, bucket_mib and num_groups are above 0")
    names = _names(optimizer, named_parameters)
    gradients = _Gradients(names, compression, backward_passes_per_step, op, gradient_predivide_factor, sparse_as_dense)
    gradients.arrange(_lists(groups, num_groups, gradients.parameters), int(bucket_mib * (1 << 20)))
    optimizer._lockstep_gradients = gradients  # type: ignore[attr-defined]
    optimizer.__class__ = _distributed_class(type(optimizer))
    optimizer.register_step_pre_hook(_before_step)
    return optimizer


def _names(optimizer: torch.optim.Optimizer, named: Optional[Iterable[Tuple[str, Any]]]) -> Dict[Any, str]:
    """Parameter to name, in the order of the optimizer, which is that of all ranks."""
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    if named is None:
        return {one: f"parameter {index}" for index, one in enumerate(parameters)}
    by_parameter: Dict[Any, str] = {}
    seen: Dict[str, Any] = {}
    for name, parameter in named:
        if name in seen:
            raise SpecError(f"two parameters are named {name}; names must differ")
        seen[name] = parameter
        by_parameter.setdefault(parameter, name)
    missing = sum(1 for one in parameters if one not in by_parameter)
    if missing:
        raise SpecError(f"{missing} parameters of the optimizer are not in named_parameters; give model.named_parameters()")
    return {one: by_parameter[one] for one in parameters}


def _lists(groups: Groups, num_groups: int, parameters: List[Any]) -> Optional[List[List[Any]]]:
    """As the caller wants the buckets; None: by size."""
    if groups is not None and num_groups:
        raise SpecError("give groups= or num_groups=, not both")
    if isinstance(groups, int):
        num_groups = groups
    elif groups is not None:
        lists = [list(one) for one in groups]
        known = set(parameters)
        given = [one for part in lists for one in part if one in known]
        if len(given) != len(set(given)):
            raise SpecError("a parameter is in two groups")
        rest = [[one] for one in parameters if one not in set(given)]
        return [[one for one in part if one in known] for part in lists] + rest
    if num_groups:
        count = min(num_groups, len(parameters))
        return [parameters[index * len(parameters) // count:(index + 1) * len(parameters) // count] for index in range(count)]
    return None


class _Bucket:
    """Gradients of one dtype and device that travel together."""

    def __init__(self, parameters: List[Any]) -> None:
        self.parameters = parameters
        self.ready = 0
        self.handle: Optional[Handle] = None
        self.context: Any = None

    @property
    def is_full(self) -> bool:
        return self.ready == len(self.parameters)


class _Gradients:
    def __init__(self, names: Dict[Any, str], compression: Any, passes: int, op: ReduceOp, predivide: float, dense: bool) -> None:
        self.names = {parameter: name for parameter, name in names.items() if parameter.requires_grad}
        self.parameters = list(self.names)
        self.passes = passes
        self.skips = False  # the next step() finds the gradients as they are
        self._compression = compression
        self._op = op
        self._predivide = predivide
        self._dense = dense
        self._seen: Dict[Any, int] = {}  # backward passes of a parameter since the last step
        self._buckets: List[_Bucket] = []
        self._bucket_of: Dict[Any, _Bucket] = {}
        self._next = 0  # first bucket that has not left
        self._group: _core.World = new_group(None, "gradients")
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def arrange(self, lists: Optional[List[List[Any]]], most_bytes: int) -> None:
        backwards = [list(reversed(self.parameters))] if lists is None else [list(reversed(one)) for one in reversed(lists)]
        for part in backwards:
            held: List[Any] = []
            size = 0
            for parameter in part:
                bytes_here = parameter.numel() * parameter.element_size()
                other = held and (held[0].dtype != parameter.dtype or held[0].device != parameter.device)
                if held and (other or (lists is None and size + bytes_here > most_bytes)):
                    self._add(held)
                    held, size = [], 0
                held.append(parameter)
                size += bytes_here
            if held:
                self._add(held)

    def _add(self, parameters: List[Any]) -> None:
        bucket = _Bucket(parameters)
        self._buckets.append(bucket)
        for parameter in parameters:
            self._bucket_of[parameter] = bucket

    def _on_gradient(self, parameter: Any) -> None:
        seen = self._seen[parameter] = self._seen.get(parameter, 0) + 1
        if seen > self.passes:
            raise SpecError(f"{self.names[parameter]}: backward() came {seen} times before step(); raise "
                            "backward_passes_per_step, or call step() or synchronize() after each")
        if seen == self.passes:
            self._bucket_of[parameter].ready += 1
            while self._next < len(self._buckets) and self._buckets[self._next].is_full:
                self._send()

    def _send(self) -> None:
        bucket = self._buckets[self._next]
        self._next += 1
        small, bucket.context = self._compression.compress(self._flat(bucket))
        factors = {}
        if self._predivide != 1.0:
            factors = {"prescale_factor": 1.0 / self._predivide, "postscale_factor": self._predivide}
        name = self.names[bucket.parameters[0]]
        more = f" and {len(bucket.parameters) - 1} more" if len(bucket.parameters) > 1 else ""
        bucket.handle = all_reduce_async_(small, None, f"gradient of {name}{more}", self._op, group=self._group, **factors)

    def _flat(self, bucket: _Bucket) -> Any:
        parts = []
        for parameter in bucket.parameters:
            gradient = parameter.grad
            if gradient is None:  # not used on this rank; another may have used it
                gradient = parameter.grad = torch.zeros_like(parameter)
            elif gradient.is_sparse:
                if not self._dense:
                    raise SpecError(f"{self.names[parameter]} has a sparse gradient; use sparse_as_dense=True")
                gradient = parameter.grad = gradient.to_dense()
            parts.append(gradient.detach().reshape(-1))
        return torch.cat(parts) if len(parts) > 1 else parts[0].clone()

    def synchronize(self) -> None:
        """Sends what has not left, and puts the gradients of all ranks in their place."""
        while self._next < len(self._buckets):
            self._send()
        for bucket in self._buckets:
            assert bucket.handle is not None
            flat = self._compression.decompress(bucket.handle.wait(), bucket.context)
            at = 0
            for parameter in bucket.parameters:
                count = parameter.numel()
                parameter.grad.detach().copy_(flat[at:at + count].view_as(parameter))
                at += count
            bucket.ready, bucket.handle, bucket.context = 0, None, None
        self._next = 0
        self._seen = {}

    @property
    def is_under_way(self) -> bool:
        return self._next > 0


def _before_step(optimizer: Any, arguments: Any, named: Any) -> None:
    gradients = optimizer._lockstep_gradients
    if not gradients.skips:
        gradients.synchronize()


class _Distributed:
    """What a distributed optimizer has beside its own."""

    _lockstep_gradients: _Gradients

    def synchronize(self) -> None:
        """Gradients of all ranks are in place after it: to clip them, say. Then `with skip_synchronize(): step()`."""
        self._lockstep_gradients.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """step() takes the gradients as they are: synchronize() was called."""
        self._lockstep_gradients.skips = True
        try:
            yield
        finally:
            self._lockstep_gradients.skips = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        if passes < 1:
            raise SpecError("backward_passes_per_step is 1 or more")
        self._lockstep_gradients.passes = passes

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        if self._lockstep_gradients.is_under_way:
            raise SpecError("zero_grad() came after backward() and before step() or synchronize(): gradients are on their way")
        super().zero_grad(*arguments, **named)  # type: ignore[misc]


_classes: Dict[Type[Any], Type[Any]] = {}


def _distributed_class(kind: Type[Any]) -> Type[Any]:
    """`kind` with our methods, under its own name: isinstance() and schedulers see what they saw before."""
    if kind not in _classes:
        _classes[kind] = type(kind.__name__, (_Distributed, kind), {"__module__": kind.__module__})
    return _classes[kind]
