"""Metrics of any training program into the run store of `lockstep` (docs/how-to/launch-any-program.md).

Nothing but the standard library is used. Recording never raises into the training and never waits for a disk: lines go
into a queue that a thread appends to the file of this rank, `runs/<id>/rank-00003.jsonl` in the home folder.
"""

import atexit
import json
import math
import os
import pathlib
import re
import socket
import stat
import struct
import sys
import threading
import time
from typing import Any

__all__ = ["log"]

_PAUSE_SECONDS = 0.05  # between two writes: what a kill may cost
_MOST_LINES = 10_000  # that wait to be written; more are dropped
_BEAT_SECONDS = 1.0


def log(step=None, *, loss=None, tokens=None, samples=None, **metrics):
    """Records metrics of a step.

    Under `lockstep launch` they become part of its run; elsewhere the first rank makes a run of its own, which ends with
    the process. `lockstep report last` shows it.

    step     a number that grows; without it: one more than last time
    tokens   read since the last call by all ranks together; recorded as tokens_per_second
    samples  the same, as samples_per_second
    others   any number, by the name it gets: learning_rate, gradient_norm, evaluation_loss, ... A tensor of one element
             is a number.
    """
    try:
        _run().log(step, {"loss": loss, **metrics}, tokens, samples)
    except Exception:  # noqa: BLE001 - a metric is never worth a training run
        pass


def home_directory():
    """As the `lockstep` command has it."""
    if os.environ.get("LOCKSTEP_HOME"):
        return pathlib.Path(os.environ["LOCKSTEP_HOME"])
    if os.environ.get("XDG_DATA_HOME"):
        return pathlib.Path(os.environ["XDG_DATA_HOME"]) / "lockstep"
    return pathlib.Path.home() / ".local/share/lockstep"


def _number(value):
    """JSON has no NaN and no infinity; a loss may well be one."""
    value = float(value.detach() if hasattr(value, "detach") else value)
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


class _Lines:
    """A file that a thread appends whole lines to."""

    def __init__(self, path):
        self._path = path
        self._lines = []
        self._mutex = threading.Lock()
        self._wake = threading.Event()
        self._file: Any = None  # its descriptor
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="lockstep-log", daemon=True)
        self._thread.start()

    def add(self, record):
        with self._mutex:
            if len(self._lines) < _MOST_LINES:
                self._lines.append(json.dumps(record))
        self._wake.set()

    def close(self, seconds=5.0):
        self._closed = True
        self._wake.set()
        self._thread.join(seconds)

    def _open(self):
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        # What a kill cut short must not run into the next line.
        size = os.lseek(self._file, 0, os.SEEK_END)
        whole = size
        while whole > 0:
            begin = max(0, whole - 4096)
            found = os.pread(self._file, whole - begin, begin).rfind(b"\n")
            if found >= 0:
                whole = begin + found + 1
                break
            whole = begin
        if whole < size:
            os.ftruncate(self._file, whole)
        os.lseek(self._file, whole, os.SEEK_SET)

    def _work(self):
        while True:
            self._wake.wait()
            self._wake.clear()
            closed = self._closed
            with self._mutex:
                lines, self._lines = self._lines, []
            try:
                if lines:
                    if self._file is None:
                        self._open()
                    text = memoryview(("\n".join(lines) + "\n").encode())
                    while text:
                        text = text[os.write(self._file, text):]
            except OSError:  # a full disk: these are lost, the next ones may not be
                if self._file is not None:
                    os.close(self._file)
                self._file = None  # opened again, without what was cut short
            if closed:
                return
            time.sleep(_PAUSE_SECONDS)


class _Heart:
    """Tells the agent of `lockstep launch` how far this process is."""

    def __init__(self):
        self._socket = None
        self._told = 0.0
        try:
            number = int(os.environ["LOCKSTEP_MESSAGE_FD"])
            self._generation = int(os.environ["LOCKSTEP_GENERATION"])
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                return
            found = socket.socket(fileno=os.dup(number))
            # The number may be another socket by now, in a process that was started by ours.
            credentials = found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            if struct.unpack("3i", credentials)[0] == int(os.environ["LOCKSTEP_AGENT_PID"]):
                self._socket = found
        except (KeyError, ValueError, OSError):
            pass

    def beat(self, step):
        now = time.monotonic()
        if self._socket is None or now - self._told < _BEAT_SECONDS:
            return
        self._told = now
        line = json.dumps({"type": "heartbeat", "step": step, "generation": self._generation}) + "\n"
        try:
            self._socket.send(line.encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            pass


def rank_and_world():
    """Of this process, whichever launcher started it; without the compiled module torchrun's words alone."""
    try:
        from ._core import rank_environment

        found = rank_environment()
        return (found.rank, found.world) if found is not None else (0, 1)
    except (ImportError, ValueError):
        return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)


class RunLog:
    """The records of this process: lines of its rank, and of the run where it is its own."""

    def __init__(self, name=None, run_id=None):
        """`run_id`: of a run that several ranks share; the first one owns it."""
        self._rank, self._world = rank_and_world()
        self._name = name or program_name()
        self._mutex = threading.Lock()
        self._step = None
        self._time = None
        self._error = ""
        self._owner = None
        self._file = None
        self._heart = _Heart()
        # A trial of `lockstep tune --command` is measured by what it prints.
        self._prints = bool(os.environ.get("LOCKSTEP_TRIAL")) and self._rank == 0
        launched = os.environ.get("LOCKSTEP_RUN_ID")
        self.id = launched or run_id or make_id(self._name)
        alone = not launched and run_id is None  # the other ranks do not know of this run
        if os.environ.get("LOCKSTEP_RECORD") == "0" or (alone and self._rank != 0) or (not launched and self._prints):
            return
        folder = home_directory() / "runs" / self.id
        if not launched and self._rank == 0:
            self._begin(folder)
        self._file = _Lines(folder / f"rank-{self._rank:05d}.jsonl")
        atexit.register(self.end)

    @property
    def rank(self):
        return self._rank

    def _begin(self, folder):
        self._owner = _Lines(folder / "run.jsonl")
        self._owner.add({"type": "run", "run": self.id, "name": self._name, "started_at": time.time(),
                         "world": self._world, "backend": "python",
                         "host": socket.gethostname(), "pid": os.getpid(), "pid_started": _started(), "job": "",
                         "versions": {"python": sys.version.split()[0]}})
        before = sys.excepthook

        def remember(kind, value, trace):
            self._error = f"{kind.__name__}: {value}".splitlines()[0]
            before(kind, value, trace)
        sys.excepthook = remember

    def end(self, status=None, reason="", summary=None):
        """Once; what comes later is nothing."""
        if self._owner:
            reason = reason or self._error
            self._owner.add({"type": "end", "run": self.id, "time": time.time(), "exit_reason": reason,
                             "status": status or ("failed" if reason else "done"), "summary": summary or {}})
        for file in (self._file, self._owner):
            if file:
                file.close()
        self._file = self._owner = None
        atexit.unregister(self.end)

    def event(self, kind, message, level, step, data):
        if self._file:
            self._file.add({"type": "event", "run": self.id, "time": time.time(), "level": level, "kind": kind,
                            "rank": self._rank, "step": step, "message": message, "data": data})

    def log(self, step, metrics, tokens, samples):
        now = time.monotonic()
        with self._mutex:
            step = int(step) if step is not None else (self._step + 1 if self._step is not None else 1)
            values = {}
            for name, value in metrics.items():
                try:
                    if value is not None:
                        values[str(name)] = _number(value)
                except (TypeError, ValueError, RuntimeError):
                    pass  # not a number
            seconds = now - self._time if self._time is not None else 0.0
            for name, count in (("tokens", tokens), ("samples", samples)):
                if count is not None and seconds > 0:
                    values.setdefault(name + "_per_second", _number(float(count) / seconds))
            if seconds > 0 and step > self._step:
                values.setdefault("step_seconds", seconds / (step - self._step))
            if self._time is None or step != self._step:
                self._step, self._time = step, now
        self._heart.beat(step)
        if values and self._file:
            self._file.add({"type": "metrics", "run": self.id, "rank": self._rank, "step": step, "time": time.time(),
                            "values": values})
        if self._prints:
            print(json.dumps({"step": step, **values}), flush=True)


def make_id(name):
    """As the command makes them: sorted by time."""
    safe = re.sub(r"[^A-Za-z0-9_]", "-", name[:32])
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + os.urandom(3).hex() + ("-" + safe if safe else "")


def program_name():
    return pathlib.Path(sys.argv[0] or "python").stem or "python"


def _started():
    """Field 22 of /proc/self/stat, so that a reader does not mistake another process of this number for ours."""
    try:
        return int(pathlib.Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


_current: Any = None
_current_mutex = threading.Lock()


def _run():
    global _current
    with _current_mutex:
        if _current is None:
            _current = RunLog()
        return _current


def use(run):
    """What log() records into from now on; returns what it was before. None: a run of its own, once there is something."""
    global _current
    with _current_mutex:
        before, _current = _current, run
        return before


def _forget():
    """In a forked child: the thread is the parent's, and so is the file."""
    global _current, _current_mutex
    _current_mutex = threading.Lock()
    _current = _Silent()


class _Silent:
    def log(self, *ignored):
        pass


os.register_at_fork(after_in_child=_forget)
