"""`lockstep.train`: the C++ engine on ranks of this machine, from Python (docs/how-to/python.md)."""

from __future__ import annotations

import collections
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import IO, Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, Union

from . import errors
from ._executable import find_executable
from ._job import Job, Overrides, Request
from ._log import home_directory, make_id
from .store import Run, open_run

__all__ = ["Callback", "Step", "StopTraining", "train"]

_KEPT_LINES = 200  # of what it said on stderr
_GRACE_SECONDS = 20.0  # after a second Ctrl-C


@dataclass(frozen=True)
class Step:
    """One optimizer step of the whole job."""

    step: int
    loss: float
    seconds: float
    tokens_per_second: Optional[float] = None  # models without tokens have samples_per_second
    samples_per_second: Optional[float] = None


class StopTraining(Exception):
    """Raised by a callback: the run saves, ends, and train() returns it."""


class Callback:
    """What train() calls. A plain function is called with every Step."""

    def on_begin(self, steps: Optional[int]) -> None:
        """`steps`: how many there will be, None where the job counts tokens or epochs."""

    def on_step(self, step: Step) -> None:
        pass

    def on_end(self, run: Run) -> None:
        """The run is over: done, or stopped and saved. Not called where it failed."""


class _Function(Callback):
    def __init__(self, function: Callable[[Step], Any]) -> None:
        self._function = function

    def on_step(self, step: Step) -> None:
        self._function(step)


class Progress(Callback):
    """A line that counts steps: rewritten on a terminal or in a notebook, else a new one every few seconds."""

    def __init__(self, file: Optional[IO[str]] = None, every: Optional[float] = None) -> None:
        self._file = file or sys.stderr
        self._rewrites = self._file.isatty() or "ipykernel" in sys.modules
        self._every = every if every is not None else 0.2 if self._rewrites else 5.0
        self._steps: Optional[int] = None
        self._shown = 0.0
        self._last: Optional[Step] = None

    def on_begin(self, steps: Optional[int]) -> None:
        self._steps = steps

    def on_step(self, step: Step) -> None:
        self._last = step
        if time.monotonic() - self._shown >= self._every or step.step == self._steps:
            self._show(step)

    def on_end(self, run: Run) -> None:
        if self._rewrites and self._last is not None:
            self._show(self._last)
            self._file.write("\n")
            self._file.flush()

    def _show(self, step: Step) -> None:
        self._shown = time.monotonic()
        of_all = f"/{self._steps}" if self._steps else ""
        rate = ""
        for value, unit in ((step.tokens_per_second, "tokens/s"), (step.samples_per_second, "samples/s")):
            if value:
                rate = f"  {value:,.0f} {unit}"
        line = f"step {step.step}{of_all}  loss {step.loss:.4f}{rate}"
        self._file.write(f"\r{line:<72}" if self._rewrites else line + "\n")
        self._file.flush()


def train(
    job: Job,
    *,
    model: Any = None,
    loss: Optional[str] = None,
    data: Any = None,
    callbacks: Sequence[Union[Callback, Callable[[Step], Any]]] = (),
    overrides: Overrides = None,
    resume: Union[bool, str, os.PathLike[str]] = False,
    backend: Optional[str] = None,
    export: Union[str, os.PathLike[str], None] = None,
    folder: Union[str, os.PathLike[str], None] = None,
    home: Union[str, os.PathLike[str], None] = None,
    progress: bool = True,
) -> Run:
    """Trains a job with the C++ engine on ranks of this machine, and returns the run.

    job        a job file, or a dict with its keys (docs/reference/job-file.md); relative paths in a dict start from the
               working folder
    model      instead of the job's: a torch module, which is scripted; the file of a scripted one; a preset, a file or a map
    loss       of a torch module: `cross_entropy`, ... (docs/reference/job-file.md)
    data       instead of the job's: a path, a map with `kind`, arrays (inputs, target), a DataLoader or an iterable of samples
    callbacks  functions of a Step, or Callbacks
    overrides  {"batch.micro": 8}, as on the command line
    resume     True: from the last checkpoint of this job; a path: from there
    backend    local, tcp, gloo, mpi or nccl
    export     a folder that gets the weights at the end
    folder     where a dict, a module or data are written as files; default: one of its own below the home folder. To
               resume with a module or data of your own, give the same one again
    home       where runs are recorded; default: as the command has it

    Ctrl-C ends the run cleanly: it saves, and `Interrupted` (a KeyboardInterrupt) is raised with the run. What is wrong
    is raised as SpecError, DoesNotFit, EnvironmentError or RunFailed, with the text of the command line.
    """
    _refuse_inside_a_launcher()
    where = pathlib.Path(home) if home is not None else home_directory()
    own = _is_object(model) or _is_object(data)
    if resume is True and own and folder is None:
        raise errors.SpecError("to resume with a module or data of your own give the folder of the first time: folder=...")
    files = pathlib.Path(folder) if folder is not None else where / "python" / make_id("job")
    request = Request(job, files, overrides, resumes=resume is not False)
    request.set_model(model, loss)
    request.set_data(data)
    words = ["train", *request.words(), "--json", "--report-steps"]
    if backend is not None:
        words += ["--backend", backend]
    if export is not None:
        words += ["--export", os.fspath(export)]
    if resume is not False:
        words.append("--resume")
        if resume is not True:
            words.append(os.fspath(resume))
    heard: List[Callback] = [one if isinstance(one, Callback) else _Function(one) for one in callbacks]
    if progress:
        heard.insert(0, Progress())
    return _Training([find_executable(needs_engine=True), *words], where, heard, request.steps).run()


def _is_object(value: Any) -> bool:
    return value is not None and not isinstance(value, (str, os.PathLike)) and not (
        isinstance(value, Mapping) and ("kind" in value or "arch" in value or "preset" in value or "torchscript" in value))


def _refuse_inside_a_launcher() -> None:
    from ._core import rank_environment

    found = rank_environment()
    if found is not None and found.world > 1:
        raise errors.SpecError(f"lockstep.train() starts ranks itself, and this process is rank {found.rank} of {found.world} "
                               f"that {found.source} started; start the script by itself, or use `lockstep launch JOB`")


class _Training:
    """The process, what it says, and what is done about it."""

    def __init__(self, words: List[str], home: pathlib.Path, callbacks: List[Callback], steps: Optional[int]) -> None:
        self._home = home
        self._callbacks = callbacks
        self._steps = steps
        self._said: Deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self._last: Dict[str, Any] = {}
        # Ctrl-C of a terminal goes to the whole group: to us alone, who pass it on. If we are killed, it ends too.
        environment = {**os.environ, "LOCKSTEP_HOME": str(home), "LOCKSTEP_PARENT": str(os.getpid())}
        try:
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                             env=environment, text=True, encoding="utf-8", errors="replace",
                                             start_new_session=True)
        except OSError as problem:
            raise errors.EnvironmentError(f"cannot start {words[0]}: {problem}") from None
        self._listener = threading.Thread(target=self._listen, name="lockstep-train", daemon=True)
        self._listener.start()

    def run(self) -> Run:
        stopped: Optional[BaseException] = None
        try:
            for one in self._callbacks:
                one.on_begin(self._steps)
            self._read_steps()
        except BaseException as problem:  # noqa: BLE001 - whatever a callback or Ctrl-C raises: the run is saved first
            stopped = problem
            self._stop()
        code = self._process.wait()
        self._listener.join(5.0)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None and not self._listener.is_alive():
                pipe.close()
        run = self._find_run()
        if stopped is not None and not isinstance(stopped, (KeyboardInterrupt, StopTraining)):
            raise stopped
        if isinstance(stopped, KeyboardInterrupt):
            raise errors.Interrupted(self._how_it_stopped(run), run) from None
        if code != 0 and not (isinstance(stopped, StopTraining) and code == errors.Interrupted.exit_code):
            raise errors.of_exit_code(code, self._problem(code), run)
        if run is None:
            raise errors.RunFailed(f"{self._process.args[0]} ended without a result: {self._problem(code)}")  # type: ignore
        for one in self._callbacks:
            one.on_end(run)
        return run

    def _read_steps(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            found = self._parse(line)
            if found is not None:
                for one in self._callbacks:
                    one.on_step(found)

    def _parse(self, line: str) -> Optional[Step]:
        try:
            found = json.loads(line)
        except ValueError:
            return None
        if "schema" in found:
            self._last = found
            return None
        loss = found.get("loss")
        return Step(step=found["step"], loss=math.nan if loss is None else loss, seconds=found["seconds"],
                    tokens_per_second=found.get("tokens_per_second"), samples_per_second=found.get("samples_per_second"))

    def _stop(self) -> None:
        """Asks it to save and end; a second Ctrl-C kills its ranks, a third one all of it."""
        signals = iter((signal.SIGINT, signal.SIGINT))
        number = next(signals)
        while True:
            try:
                if self._process.poll() is None:
                    self._process.send_signal(number)
                assert self._process.stdout is not None
                for line in self._process.stdout:  # steps that still come, and the last line
                    self._parse(line)
                self._process.wait()
                return
            except KeyboardInterrupt:
                try:
                    number = next(signals)
                except StopIteration:
                    self._kill()
                    return

    def _kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # its session is its own
        self._process.wait(_GRACE_SECONDS)

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said.append(line.rstrip("\n"))

    def _find_run(self) -> Optional[Run]:
        name = self._last.get("run")
        if not name:
            return None
        try:
            return open_run(name, self._home)
        except errors.UserError:
            return None

    def _problem(self, code: int) -> str:
        text = self._last.get("error") or ""
        if not text:
            ours = [line[len("lockstep: "):] for line in self._said if line.startswith("lockstep: ")]
            text = ours[-1] if ours else "\n".join(list(self._said)[-5:])
        return text or f"lockstep train ended with exit code {code} and said nothing"

    def _how_it_stopped(self, run: Optional[Run]) -> str:
        if run is None:
            return "stopped before the run began"
        steps = run.summary.get("steps")
        at = f" after step {steps}" if steps is not None else ""
        return f"run {run.id} was stopped{at} and saved; train(..., resume=True) goes on"
