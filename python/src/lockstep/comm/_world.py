"""The ranks of this program: who they are, and how they met."""

from __future__ import annotations

import atexit
import os
import sys
from typing import List, Optional, Sequence, Tuple

from .. import _core
from ..errors import SpecError

__all__ = ["init", "shutdown", "is_initialized", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size",
           "backend"]

_GOODBYE_SECONDS = 5.0
_BACKENDS = ("tcp", "gloo", "mpi", "nccl", "local")


class _State:
    """Of this process. The meeting stays until its end: ranks that come back find it where it was."""

    def __init__(self) -> None:
        self.world: Optional[_core.World] = None
        self.ranks: Optional[_core.RankEnvironment] = None
        self.meeting: Optional[_core.Meeting] = None
        self.worlds = 0  # opened so far; names what they keep in the store
        self.groups: List[_core.World] = []
        self.forked = False


_state = _State()


def init(
    backend: Optional[str] = None,
    *,
    address: Optional[str] = None,
    timeout: float = 300.0,
    connect_timeout: float = 60.0,
) -> None:
    """Joins the other ranks. Blocks until all are there; does nothing where this was done before.

    Who this process is follows from LOCKSTEP_*, torchrun's variables, SLURM_*, OMPI_* or PMI_*, so that `lockstep launch`,
    `torchrun`, `srun` and `mpirun` all do. Started by itself it is rank 0 of 1.

    backend  tcp, gloo, mpi or nccl. Default: LOCKSTEP_BACKEND, else mpi under `mpirun` where its plugin is there, else tcp
    address  host:port where the ranks meet, instead of the launcher's; torch.distributed may use that one then
    timeout  seconds that an operation may take unless it is told otherwise
    """
    if _state.world is not None:
        return
    if backend is not None and backend not in _BACKENDS:
        raise SpecError(f"there is no backend {backend!r}; use one of {', '.join(_BACKENDS)}")
    if not timeout > 0 or not connect_timeout > 0:
        raise SpecError("a timeout is a number of seconds above 0")
    ranks = _core.rank_environment() or _core.RankEnvironment()
    if address is not None:
        ranks.master_host, ranks.master_port = _split(address)
    chosen = backend or os.environ.get("LOCKSTEP_BACKEND") or _usual_backend(ranks)
    if ranks.world == 1 and chosen in ("tcp", "gloo"):
        chosen = "local"  # there is nobody to connect to
    meets = chosen not in ("mpi", "local")
    if meets and _state.meeting is None:
        _state.meeting = _core.Meeting(ranks, connect_timeout)
    _state.worlds += 1
    _state.world = _core.World(ranks, chosen, _state.meeting if meets else None, f"python-{_state.worlds}", timeout,
                               min(connect_timeout, timeout))
    _state.ranks = ranks
    _state.forked = False
    atexit.register(shutdown)


def _split(address: str) -> Tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise SpecError(f"address={address!r} is not host:port")
    return host, int(port)


def _usual_backend(ranks: _core.RankEnvironment) -> str:
    if ranks.source in ("openmpi", "pmi") and _core.has_plugin("mpi"):
        return "mpi"
    return "tcp"


def shutdown() -> None:
    """Leaves the others, at most some seconds after they stopped coming; done at the end of the program by itself.

    A program that ends with an exception does not wait: the others are told at once that this rank is lost.
    """
    if _state.world is None or _state.forked:
        return
    failed = getattr(sys, "last_value", None) is not None
    everybody = _state.meeting is not None and not failed
    if everybody and _state.meeting is not None:
        _state.meeting.everybody_came(f"python-{_state.worlds}/goodbye", _state.world.size, _GOODBYE_SECONDS)
    groups, world = _state.groups, _state.world
    _state.groups, _state.world, _state.ranks = [], None, None
    for group in (*groups, world):
        group.close()
    atexit.unregister(shutdown)


def is_initialized() -> bool:
    return _state.world is not None and not _state.forked


def world() -> _core.World:
    if _state.forked:
        raise SpecError("the communicator belongs to the process that this one was forked from; use it there")
    if _state.world is None:
        raise SpecError("lockstep.comm is not initialised; call init() first")
    return _state.world


def _ranks() -> _core.RankEnvironment:
    world()
    assert _state.ranks is not None
    return _state.ranks


def rank() -> int:
    return world().rank


def size() -> int:
    return world().size


def local_rank() -> int:
    """Among the ranks of this node."""
    return _ranks().local_rank


def local_size() -> int:
    return _ranks().local_world


def cross_rank() -> int:
    """Number of this node, where every node has as many ranks."""
    return rank() // local_size()


def cross_size() -> int:
    return (size() + local_size() - 1) // local_size()


def backend() -> str:
    """What carries the data: tcp, gloo, mpi, nccl, or local for a single rank."""
    return world().backend


def new_group(ranks: Optional[Sequence[int]], name: str) -> _core.World:
    """Called by these ranks, in the same order relative to their other operations. None: all of them."""
    group = world().subgroup(list(range(size())) if ranks is None else list(ranks), name)
    _state.groups.append(group)
    return group


def _forget_in_child() -> None:
    # The threads of the communicator are the parent's. What they held must not be closed here, so it is kept.
    _state.forked = _state.world is not None


os.register_at_fork(after_in_child=_forget_in_child)
