"""Which `lockstep` a function of this package starts."""

from __future__ import annotations

import os
import pathlib
import shutil
import sysconfig
from typing import Iterator, List

from .errors import EnvironmentError

_ENGINE = "liblockstep_engine.so"


def find_executable(needs_engine: bool = False) -> str:
    """LOCKSTEP_EXECUTABLE; else the one beside this package; else the first in PATH.

    With `needs_engine` one that has the engine beside it comes before one that has not: the executable of the wheel
    plans and reports, and trains only where LOCKSTEP_ENGINE names an engine.
    """
    given = os.environ.get("LOCKSTEP_EXECUTABLE")
    if given:
        found = shutil.which(given)
        if found is None:
            raise EnvironmentError(f"LOCKSTEP_EXECUTABLE={given} is not an executable; set it to the path of `lockstep`")
        return found
    candidates = list(_candidates())
    if not candidates:
        raise EnvironmentError("there is no executable `lockstep` beside this package or in PATH; install Lockstep "
                               "(docs/how-to/install.md), or set LOCKSTEP_EXECUTABLE to its path")
    if needs_engine and not os.environ.get("LOCKSTEP_ENGINE"):
        candidates.sort(key=lambda one: not _has_engine(one))  # stable
    return str(candidates[0])


def _candidates() -> Iterator[pathlib.Path]:
    package = pathlib.Path(__file__).resolve().parent
    folders: List[pathlib.Path] = [package.parent.parent, pathlib.Path(sysconfig.get_path("scripts"))]
    folders += [pathlib.Path(entry) for entry in os.get_exec_path() if entry]
    for folder in folders:
        file = folder / "lockstep"
        if file.is_file() and os.access(file, os.X_OK):
            yield file


def _has_engine(executable: pathlib.Path) -> bool:
    """As the executable itself looks for it."""
    folder = executable.resolve().parent
    return (folder / _ENGINE).is_file() or (folder.parent / "lib" / "lockstep" / _ENGINE).is_file()
