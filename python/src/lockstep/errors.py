"""What goes wrong, with the texts of the command line (docs/reference/errors.md).

    LockstepError
      UserError            what you can fix; a ValueError too
        SpecError          a file, key or argument is wrong            exit code 2
        DoesNotFit         what was asked for cannot be                exit code 3
        EnvironmentError   this machine lacks something                exit code 4
      RunFailed            a run began and failed; `run` is what it recorded    exit code 1
      WorthRetrying        it ended and should be started again        exit code 75
      Fault                ranks that work together: `rank` is the one believed to be the cause, or -1
        PeerLost, TimeoutFault, Aborted
    Interrupted            Ctrl-C; a KeyboardInterrupt. The run was saved: `run`

>>> raise user_error(2, "job.yaml:4:9: unknown key `mciro` in batch; did you mean `micro`?")
Traceback (most recent call last):
    ...
lockstep.SpecError: job.yaml:4:9: unknown key `mciro` in batch; did you mean `micro`?
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Optional, Type

if TYPE_CHECKING:
    from .store import Run

__all__ = [
    "Aborted",
    "DoesNotFit",
    "EnvironmentError",
    "Fault",
    "Interrupted",
    "LockstepError",
    "PeerLost",
    "RunFailed",
    "SpecError",
    "TimeoutFault",
    "UserError",
    "WorthRetrying",
]


class LockstepError(Exception):
    """All that is ours."""


class UserError(LockstepError, ValueError):
    """What you can fix: place, problem and fix in one line."""

    exit_code = 2


class SpecError(UserError):
    """A file, key or argument is wrong."""


class DoesNotFit(UserError):
    """What was asked for cannot be: it needs more memory than there is, say."""

    exit_code = 3


class EnvironmentError(UserError):  # noqa: A001 - the name of this family everywhere
    """This machine lacks something: an executable, a library, a port."""

    exit_code = 4


class _OfARun(LockstepError):
    def __init__(self, text: str, run: Optional[Run] = None) -> None:
        super().__init__(text)
        self.run = run


class RunFailed(_OfARun, RuntimeError):
    """A run began and failed."""

    exit_code = 1


class WorthRetrying(_OfARun, RuntimeError):
    """The run ended on demand of the machine (a preemption, say), or another process holds its folder: start it again."""

    exit_code = 75


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. The run has saved where it was; `lockstep.train(..., resume=True)` goes on."""

    exit_code = 130

    def __init__(self, text: str, run: Optional[Run] = None) -> None:
        super().__init__(text)
        self.run = run


class Fault(LockstepError, RuntimeError):
    """Ranks that work together; after it their group is unusable and repeats the same fault."""

    def __init__(self, text: str, rank: int = -1) -> None:
        super().__init__(text)
        self.rank = rank


class PeerLost(Fault):
    """A rank's connection was closed: it exited, was killed, or its node went away."""


class TimeoutFault(Fault):
    """A rank did not do its part in time."""


class Aborted(Fault):
    """This side ended it, or the ranks disagreed on what to do."""


# As they are raised, named and pickled: lockstep.SpecError.
for _class in (LockstepError, UserError, SpecError, DoesNotFit, EnvironmentError, RunFailed, WorthRetrying, Interrupted,
               Fault, PeerLost, TimeoutFault, Aborted):
    _class.__module__ = "lockstep"

_BY_CODE: Dict[int, Type[UserError]] = {one.exit_code: one for one in (SpecError, DoesNotFit, EnvironmentError)}


def user_error(code: int, text: str) -> UserError:
    return _BY_CODE.get(code, UserError)(text)


def of_exit_code(code: int, text: str, run: Optional[Run] = None) -> BaseException:
    """The exception for how `lockstep` ended."""
    if code in _BY_CODE:
        return _BY_CODE[code](text)
    if code == WorthRetrying.exit_code:
        return WorthRetrying(text, run)
    if code == Interrupted.exit_code:
        return Interrupted(text, run)
    return RunFailed(text, run)
