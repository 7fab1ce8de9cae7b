"""A `lockstep serve` on a home of made-up runs, for tests that speak HTTP to it."""
import contextlib
import http.client
import json
import math
import os
import pathlib
import signal
import subprocess
import tempfile
import time

BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD_DIR"])
LOCKSTEP = BUILD / "lockstep"
HOSTILE = "</script><script>alert(1)</script>\"'`\x1b[31m\u202e=cmd|' /C calc'!A0"


def start_of_process(pid: int) -> int:
    return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


class Run:
    """A run as JSON lines (docs/reference/run-store.md); it is running as long as this process."""

    def __init__(self, home: pathlib.Path, run_id: str, name: str = "job", world: int = 2):
        self.id, self.world = run_id, world
        self.folder = home / "runs" / run_id
        self.folder.mkdir(parents=True)
        pid = os.getpid()
        self._append("run.jsonl", type="run", name=name, started_at=time.time(), world=world, backend="tcp",
                     host=os.uname().nodename, pid=pid, pid_started=start_of_process(pid), job="a: b", versions={})

    def _append(self, file: str, **record):
        with open(self.folder / file, "a", encoding="utf-8") as lines:
            lines.write(json.dumps({"run": self.id, **record}) + "\n")

    def plan(self, plan: dict):
        self._append("run.jsonl", type="plan", plan=plan)

    def step(self, step: int, **values):
        for rank in range(self.world):
            own = {"step_seconds": 0.1 + 0.01 * rank, **(values if rank == 0 else {})}
            self._append(f"rank-{rank:05}.jsonl", type="metrics", rank=rank, step=step, time=time.time(), values=own)

    def steps(self, count: int):
        for rank in range(self.world):
            with open(self.folder / f"rank-{rank:05}.jsonl", "a", encoding="utf-8") as lines:
                for step in range(1, count + 1):
                    values = {"step_seconds": 0.1 + 0.01 * rank}
                    if rank == 0:
                        values |= {"loss": 4 * math.exp(-step / 100) + 1, "tokens_per_second": 1000.0}
                    lines.write(json.dumps({"run": self.id, "type": "metrics", "rank": rank, "step": step,
                                            "time": time.time(), "values": values}) + "\n")

    def event(self, kind: str, message: str, level: str = "info", **data):
        self._append("run.jsonl", type="event", time=time.time(), level=level, kind=kind, rank=-1, step=-1,
                     message=message, data=data)

    def end(self, status: str = "done", **summary):
        self._append("run.jsonl", type="end", time=time.time(), status=status, exit_reason="", summary=summary)


class Server:
    """`lockstep serve --json` until the `with` ends; it must then end by itself, with exit 0."""

    def __init__(self, home: pathlib.Path, *flags: str, program=LOCKSTEP, environment=None):
        self.home = home
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [program, "serve", "--port", "0", "--json", *flags], stdout=subprocess.PIPE, stderr=self.errors,
            env={**os.environ, "LOCKSTEP_HOME": str(home), **(environment or {})}, text=True)
        self.ready = json.loads(self.process.stdout.readline() or "{}")
        self.port = self.ready.get("port")

    def __enter__(self):
        assert self.port, self.error_text()
        return self

    def __exit__(self, *_):
        code = self.stop()
        with self.errors:
            assert code == 0, f"exit {code}: {self.error_text()}"

    def error_text(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.process.stdout.close()

    def resident_bytes(self) -> int:
        return int(pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def connect(self, timeout: float = 60) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(self, path: str, method: str = "GET", headers=None, body=None):
        """(status, headers, body) over a connection of its own."""
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return response.status, response.headers, response.read()

    def json(self, path: str, **kwargs):
        status, _, body = self.ask(path, **kwargs)
        assert status == 200, (status, body)
        return json.loads(body)


class Stream:
    """Server-sent events as (event, id, data)."""

    def __init__(self, server: Server, path: str, headers=None):
        self.connection = server.connect()
        self.connection.request("GET", path, headers=headers or {})
        self.response = self.connection.getresponse()

    def next(self, kind: str | None = None):
        fields = {}
        while True:
            line = self.response.readline()
            if not line:
                raise EOFError("the stream ended")
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            elif "event" in fields and kind in (None, fields["event"]):
                return fields["event"], fields["id"], json.loads(fields["data"])
            else:
                fields = {}

    def close(self):
        self.response.close()
        self.connection.close()
