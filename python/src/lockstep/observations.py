"""`lockstep.observe()`: a measured run of any program, from which every later plan and prediction learns."""

from __future__ import annotations

import csv
import os
import tempfile
from typing import Dict, List, Mapping, Union

from ._log import home_directory
from .errors import SpecError

__all__ = ["observe"]

Cell = Union[str, int, float, None]
_MEASURED = ("tokens_per_s_per_gpu", "step_time_s", "mem_gib_per_gpu")


def observe(run: Mapping[str, Cell]) -> None:
    """Keeps one run, as `lockstep observe --rows` does (docs/reference/prediction.md, Observed runs).

    run  columns of `lockstep predict --rows` (hardware, gpus, model or its dimensions, micro_batch, sharding, ...) and
         what was measured: tokens_per_s_per_gpu or step_time_s, mem_gib_per_gpu

    >>> observe({"id": "mine", "hardware": "H100", "gpus": 8, "model": "llama2-7b"})
    Traceback (most recent call last):
    lockstep.errors.SpecError: nothing was measured; give tokens_per_s_per_gpu, step_time_s or mem_gib_per_gpu
    """
    row = {str(key): "" if value is None else str(value) for key, value in run.items()}
    if not any(row.get(name) for name in _MEASURED):
        raise SpecError("nothing was measured; give tokens_per_s_per_gpu, step_time_s or mem_gib_per_gpu")
    for name in ("hardware", "gpus", "model"):
        if not row.get(name):
            raise SpecError(f"an observed run needs {name}")
    path = home_directory() / "observations.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    kept: List[Dict[str, str]] = []
    columns: List[str] = []
    if path.exists():
        with open(path, newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            kept = list(reader)
            columns = list(reader.fieldnames or [])
    columns += [name for name in row if name not in columns]
    if any(all(old.get(name, "") == row.get(name, "") for name in columns) for old in kept):
        return
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept + [row])
    os.replace(file.name, path)
