"""Collectives for NumPy arrays and torch tensors over tcp, gloo, mpi or nccl (docs/reference/python.md).

    import lockstep.comm as comm
    comm.init()                            # under lockstep launch, torchrun, mpirun or srun
    comm.all_reduce(array)                 # the average over all ranks; op=comm.Sum, Min, Max
    comm.all_gather(array), comm.broadcast(array, 0), comm.barrier()

Names are Horovod's too: `import lockstep.comm as hvd` in place of `import horovod.torch as hvd` ports a script.

>>> import array, lockstep.comm as comm
>>> comm.init()                            # by itself: rank 0 of 1
>>> comm.rank(), comm.size(), comm.backend()
(0, 1, 'local')
>>> comm.all_reduce(array.array("d", [1.0, 2.0]), op=comm.Sum)
array('d', [1.0, 2.0])
>>> comm.all_reduce(3.0)
3.0
>>> comm.broadcast_object({"seed": 7})
{'seed': 7}
>>> comm.shutdown()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import Aborted, Fault, PeerLost, TimeoutFault
from ._objects import allgather_object, broadcast_object, broadcast_optimizer_state, broadcast_parameters
from ._operations import (
    Adasum,
    Average,
    Handle,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
    all_gather,
    all_gather_async,
    all_reduce,
    all_reduce_,
    all_reduce_async,
    all_reduce_async_,
    all_to_all,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_all_reduce,
    grouped_all_reduce_,
    grouped_all_reduce_async,
    grouped_all_reduce_async_,
    poll,
    reduce_scatter,
    synchronize,
)
from ._world import (
    backend,
    cross_rank,
    cross_size,
    init,
    is_initialized,
    local_rank,
    local_size,
    new_group,
    rank,
    shutdown,
    size,
)
from .compression import Compression

if TYPE_CHECKING:
    from ._optimizer import DistributedOptimizer

# Horovod's names.
allreduce, allreduce_, allreduce_async, allreduce_async_ = all_reduce, all_reduce_, all_reduce_async, all_reduce_async_
grouped_allreduce, grouped_allreduce_ = grouped_all_reduce, grouped_all_reduce_
grouped_allreduce_async, grouped_allreduce_async_ = grouped_all_reduce_async, grouped_all_reduce_async_
allgather, allgather_async, alltoall, reducescatter = all_gather, all_gather_async, all_to_all, reduce_scatter

HorovodInternalError = Fault

__all__ = [
    "Aborted", "Adasum", "Average", "Compression", "DistributedOptimizer", "Fault", "Handle", "HorovodInternalError", "Max",
    "Min", "PeerLost", "Product", "ReduceOp", "Sum", "TimeoutFault", "all_gather", "all_gather_async", "all_reduce",
    "all_reduce_", "all_reduce_async", "all_reduce_async_", "all_to_all", "allgather", "allgather_async",
    "allgather_object", "allreduce", "allreduce_", "allreduce_async", "allreduce_async_", "alltoall", "backend", "barrier",
    "broadcast", "broadcast_", "broadcast_async", "broadcast_async_", "broadcast_object", "broadcast_optimizer_state",
    "broadcast_parameters", "cross_rank", "cross_size", "cuda_built", "gloo_built", "gloo_enabled", "grouped_all_reduce",
    "grouped_all_reduce_", "grouped_all_reduce_async", "grouped_all_reduce_async_", "grouped_allreduce",
    "grouped_allreduce_", "grouped_allreduce_async", "grouped_allreduce_async_", "init", "is_initialized", "local_rank",
    "local_size", "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "new_group", "poll", "rank",
    "reduce_scatter", "reducescatter", "shutdown", "size", "synchronize",
]  # fmt: skip

# Of horovod.torch, and not here.
_NOT_OFFERED = {
    "elastic": "`lockstep launch --max-restarts` starts all ranks again; load your last checkpoint at the start",
    "join": "give every rank as many batches",
    "SyncBatchNorm": "all_reduce() is differentiable: build the statistics with it",
    "ProcessSet": "use group=new_group([ranks])",
    "add_process_set": "use group=new_group([ranks])",
    "remove_process_set": "groups end with shutdown()",
    "global_process_set": "leave process_set out",
    "start_timeline": "`lockstep launch` and lockstep.record() record the run",
    "stop_timeline": "`lockstep launch` and lockstep.record() record the run",
    "sparse_allreduce_async": "use to_dense()",
}


def mpi_built() -> bool:
    """Whether the plugin of the backend mpi is there; libraries that it needs may still be missing."""
    return _core.has_plugin("mpi")


def gloo_built() -> bool:
    return _core.has_plugin("gloo")


def nccl_built() -> bool:
    return _core.has_plugin("nccl")


def cuda_built() -> bool:
    """Whether arrays of GPUs go over without a copy to the host."""
    return nccl_built()


def mpi_enabled() -> bool:
    return backend() == "mpi"


def gloo_enabled() -> bool:
    return backend() == "gloo"


def mpi_threads_supported() -> bool:
    return mpi_built()


def __getattr__(name: str) -> Any:
    if name == "DistributedOptimizer":  # needs torch
        from ._optimizer import DistributedOptimizer

        return DistributedOptimizer
    if name in _NOT_OFFERED:
        raise AttributeError(f"lockstep.comm has no {name}; {_NOT_OFFERED[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
