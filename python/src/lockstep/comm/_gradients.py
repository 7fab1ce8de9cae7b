"""all_reduce() that gradients flow through. Imported where a tensor of torch needs it."""

from __future__ import annotations

from typing import Any, Dict

import torch

from ..errors import SpecError
from ._operations import Average, Sum, _reduction, all_reduce


class _AllReduce(torch.autograd.Function):
    """The derivative of a sum over ranks is the sum of what comes back on all ranks; of an average, the average."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, compression: Any, named: Dict[str, Any]) -> Any:
        ctx.compression, ctx.named = compression, named
        return all_reduce(tensor.detach(), compression=compression, **named)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:  # type: ignore[override]
        return all_reduce(gradient.detach().contiguous(), compression=ctx.compression, **ctx.named), None, None


def differentiable_all_reduce(tensor: Any, compression: Any, named: Dict[str, Any]) -> Any:
    if _reduction(named["average"], named["op"]) not in (Average, Sum):
        raise SpecError("gradients flow through averages and sums only; use tensor.detach()")
    return _AllReduce.apply(tensor, compression, named)
