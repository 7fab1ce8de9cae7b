"""What 64 viewers cost a run: `lockstep train` on 4 ranks with `lockstep serve` beside it, without viewers and with 64 live streams that
also load the page's questions, interleaved; medians of tokens/s, and CPU seconds that the server takes per second.

    python3 bench/serve/viewers.py --lockstep build/release/lockstep --rounds 5 --steps 60 [--report bench/reports/serve.md]
"""
import argparse
import http.client
import json
import os
import pathlib
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import measure  # noqa: E402

TICK = os.sysconf("SC_CLK_TCK")
QUESTIONS = ("series?metric=loss", "series?metric=tokens_per_second", "series?metric=step_seconds", "heatmap?metric=step_seconds",
             "events", "waterfall")


def cpu_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


class Server:
    def __init__(self, program: str, home: pathlib.Path):
        self.process = subprocess.Popen([program, "serve", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True,
                                        env={**os.environ, "LOCKSTEP_HOME": str(home)})
        self.port = json.loads(self.process.stdout.readline())["port"]

    def ask(self, path: str):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path)
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        self.process.stdout.close()


class Viewers(threading.Thread):
    """So many streams of the newest run, read by one thread; a tenth of the viewers opens the page anew every second."""

    def __init__(self, server: Server, count: int):
        super().__init__(daemon=True)
        self.server, self.count, self.ticks, self.bytes, self.asked, self.stopping = server, count, 0, 0, 0, False
        self.largest_tick = 0

    def newest(self) -> str | None:
        while not self.stopping:
            running = [run["id"] for run in self.server.ask("/api/v1/runs?status=running&limit=1")["runs"]]
            if running:
                return running[0]
            time.sleep(0.2)
        return None

    def run(self):
        run = self.newest()
        if run is None:
            return
        selector = selectors.DefaultSelector()
        for _ in range(self.count):
            viewer = socket.create_connection(("127.0.0.1", self.server.port))
            viewer.sendall(f"GET /api/v1/runs/{run}/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            selector.register(viewer, selectors.EVENT_READ)
        opened = time.monotonic()
        while not self.stopping:
            for key, _ in selector.select(0.2):
                data = key.fileobj.recv(65536)
                self.bytes += len(data)
                self.ticks += data.count(b"event: tick")
                if data.count(b"event: tick") == 1:
                    self.largest_tick = max(self.largest_tick, len(data))
                if not data:
                    selector.unregister(key.fileobj)
            if time.monotonic() - opened > 1:
                opened = time.monotonic()
                for question in QUESTIONS:
                    self.server.ask(f"/api/v1/runs/{run}/{question}")
                    self.asked += 1
        for key in list(selector.get_map().values()):
            key.fileobj.close()


def train(options, home: pathlib.Path) -> float:
    command = [options.train or options.lockstep, "train", options.job, "--json", f"cluster=1x{options.ranks}xcpu", f"steps={options.steps}",
               "communication.backend=tcp"]
    done = subprocess.run(command, env={**os.environ, "LOCKSTEP_HOME": str(home)}, capture_output=True, text=True, timeout=1800)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])["tokens_per_second"]


def one(options, viewers: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(options.lockstep, pathlib.Path(folder))
        audience = Viewers(server, viewers) if viewers else None
        if audience:
            audience.start()
        before, began = cpu_seconds(server.process.pid), time.monotonic()
        rate = train(options, pathlib.Path(folder))
        seconds = time.monotonic() - began
        share = (cpu_seconds(server.process.pid) - before) / seconds
        if audience:
            audience.stopping = True
            audience.join(60)
        resident = int(pathlib.Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        server.stop()
        return {"tokens_per_second": rate, "server_cpu": share, "seconds": seconds, "resident_mib": resident / 2**20,
                "ticks": audience.ticks if audience else 0, "asked": audience.asked if audience else 0,
                "largest_tick": audience.largest_tick if audience else 0}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", default=str(measure.ROOT / "build/release/lockstep"))
    parser.add_argument("--train", help="another lockstep to train with")
    parser.add_argument("--job", default=str(measure.ROOT / "specs/jobs/gpt-10m.yaml"))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--viewers", type=int, default=64)
    parser.add_argument("--report", type=pathlib.Path)
    options = parser.parse_args()
    machine = measure.machine()
    results = {0: [], options.viewers: []}
    for number in range(options.rounds):
        order = (0, options.viewers) if number % 2 == 0 else (options.viewers, 0)
        for viewers in order:
            results[viewers].append(one(options, viewers))
            print(json.dumps({"viewers": viewers, **results[viewers][-1]}), flush=True)
    median = {viewers: statistics.median(r["tokens_per_second"] for r in rows) for viewers, rows in results.items()}
    cpu = {viewers: statistics.median(r["server_cpu"] for r in rows) for viewers, rows in results.items()}
    watched = results[options.viewers]
    lines = [f"| | without viewers | {options.viewers} viewers |", "|---|---|---|",
             f"| tokens/s, median of {options.rounds} | {median[0]:.0f} | {median[options.viewers]:.0f} |",
             f"| ratio | 1 | {median[options.viewers] / median[0]:.4f} |",
             f"| server, CPU seconds per second | {cpu[0]:.4f} | {cpu[options.viewers]:.4f} |",
             f"| server, memory MiB | {max(r['resident_mib'] for r in results[0]):.1f} | {max(r['resident_mib'] for r in watched):.1f} |",
             f"| ticks delivered per second | 0 | {statistics.median(r['ticks'] / r['seconds'] for r in watched):.1f} |",
             f"| largest tick, bytes | | {max(r['largest_tick'] for r in watched)} |"]
    spread = {viewers: [round(r["tokens_per_second"]) for r in rows] for viewers, rows in results.items()}
    text = "\n".join(lines) + f"\n\nAll runs: {spread[0]} without, {spread[options.viewers]} with. Machine: {json.dumps(machine)}\n"
    print(text)
    if options.report:
        options.report.write_text(text)


if __name__ == "__main__":
    main()
