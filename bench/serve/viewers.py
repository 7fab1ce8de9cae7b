#!/usr/bin/env python3
"""What 64 viewers cost a run: `lockstep train` on 4 ranks with `lockstep serve` beside it. Viewers come and go: some steps without
them, some with 64 live streams that also load the page's questions, in turn within one run, so that a machine whose clock wanders slows
both alike. Each stretch with viewers is compared with the mean of the two beside it.

    python3 bench/serve/viewers.py --lockstep build/release/lockstep --stretches 16 [--report bench/reports/serve.md]

The viewers run on this machine, too: what they take is told apart and is part of the ratio.
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
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", path)
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer

    def cpu(self) -> float:
        return cpu_seconds(self.process.pid)

    def resident_mib(self) -> float:
        pages = int(pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)
        self.process.stdout.close()


class Viewers(threading.Thread):
    """So many streams of the newest run, read by one thread; a tenth of the viewers opens the page anew every second."""

    def __init__(self, server: Server, count: int):
        super().__init__(daemon=True)
        self.server, self.count, self.ticks, self.asked, self.stopping = server, count, 0, 0, False
        self.largest_tick, self.own_cpu = 0, 0.0

    def run(self):
        run = self.server.ask("/api/v1/runs?status=running&limit=1")["runs"][0]["id"]
        selector = selectors.DefaultSelector()
        for _ in range(self.count):
            viewer = socket.create_connection(("127.0.0.1", self.server.port), timeout=30)
            viewer.sendall(f"GET /api/v1/runs/{run}/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            selector.register(viewer, selectors.EVENT_READ)
        opened = time.monotonic()
        while not self.stopping:
            for key, _ in selector.select(0.2):
                data = key.fileobj.recv(65536)
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
        self.own_cpu = time.thread_time()


class Stretch:
    """Some steps in a row, with or without viewers; the first is left out, as viewers come or go while it runs."""

    def __init__(self, server: Server, viewers: int):
        self.server, self.viewers, self.steps = server, viewers, []
        self.audience = Viewers(server, viewers) if viewers else None
        self.began, self.cpu = time.monotonic(), server.cpu()
        if self.audience:
            self.audience.start()

    def end(self) -> dict:
        seconds = time.monotonic() - self.began
        share = (self.server.cpu() - self.cpu) / seconds
        if self.audience:
            self.audience.stopping = True
            self.audience.join(60)
        told = self.audience
        return {"viewers": self.viewers, "step_seconds": statistics.mean(self.steps[1:]), "server_cpu": share,
                "viewers_cpu": told.own_cpu / seconds if told else 0.0, "ticks": told.ticks / seconds if told else 0.0,
                "largest_tick": told.largest_tick if told else 0, "resident_mib": self.server.resident_mib()}


def watch(options, server: Server, home: pathlib.Path) -> list:
    steps = options.warm_up + options.length * options.stretches
    command = [options.train or options.lockstep, "train", options.job, "--json", "--report-steps", f"cluster=1x{options.ranks}xcpu",
               f"steps={steps}", "communication.backend=tcp", "checkpoint.every=0", "checkpoint.final=false", "evaluation.batches=0"]
    results, stretch = [], None
    with subprocess.Popen(command, env={**os.environ, "LOCKSTEP_HOME": str(home)}, stdout=subprocess.PIPE, text=True) as training:
        for line in training.stdout:
            told = json.loads(line) if line.startswith("{") else {}
            if "step" not in told or "seconds" not in told:
                continue
            if stretch is not None:
                stretch.steps.append(told["seconds"])
            if told["step"] < options.warm_up or (told["step"] - options.warm_up) % options.length != 0:
                continue
            if stretch is not None:
                results.append(stretch.end())
                print(json.dumps(results[-1]), flush=True)
            if told["step"] < steps:
                stretch = Stretch(server, options.viewers if len(results) % 2 else 0)
        if training.wait(60) != 0:
            sys.exit(f"{' '.join(command)}: exit code {training.returncode}")
    return results


def text_of(options, results: list, machine) -> str:
    without, watched = results[0::2], results[1::2]
    ratios = sorted((before["step_seconds"] + after["step_seconds"]) / 2 / during["step_seconds"]
                    for before, during, after in zip(without, watched, without[1:]))
    def median(rows, key): return statistics.median(row[key] for row in rows)
    lines = [f"| | without viewers | {options.viewers} viewers |", "|---|---|---|",
             f"| step, ms, median of {len(without)} and {len(watched)} stretches of {options.length} steps | "
             f"{1e3 * median(without, 'step_seconds'):.1f} | {1e3 * median(watched, 'step_seconds'):.1f} |",
             f"| speed, median of pairs ({ratios[0]:.4f} to {ratios[-1]:.4f}) | 1 | {statistics.median(ratios):.4f} |",
             f"| server, CPU seconds per second | {median(without, 'server_cpu'):.4f} | {median(watched, 'server_cpu'):.4f} |",
             f"| the viewers themselves, CPU seconds per second | 0 | {median(watched, 'viewers_cpu'):.4f} |",
             f"| server, memory MiB | {max(r['resident_mib'] for r in without):.1f} | {max(r['resident_mib'] for r in watched):.1f} |",
             f"| ticks delivered per second | 0 | {median(watched, 'ticks'):.1f} |",
             f"| largest tick, bytes | | {max(r['largest_tick'] for r in watched)} |"]
    return "\n".join(lines) + f"\n\n`python3 bench/serve/viewers.py`, {options.ranks} ranks. Machine: {json.dumps(machine)}\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lockstep", default=str(measure.ROOT / "build/release/lockstep"))
    parser.add_argument("--train", help="another lockstep to train with")
    parser.add_argument("--job", default=str(measure.ROOT / "specs/jobs/gpt-10m.yaml"))
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--warm-up", type=int, default=5, help="steps")
    parser.add_argument("--length", type=int, default=10, help="steps of a stretch")
    parser.add_argument("--stretches", type=int, default=21)
    parser.add_argument("--viewers", type=int, default=64)
    parser.add_argument("--report", type=pathlib.Path)
    options = parser.parse_args()
    machine = measure.machine()
    with tempfile.TemporaryDirectory() as folder:
        server = Server(options.lockstep, pathlib.Path(folder))
        try:
            results = watch(options, server, pathlib.Path(folder))
        finally:
            server.stop()
    text = text_of(options, results, machine)
    print(text)
    if options.report:
        options.report.write_text(text)


if __name__ == "__main__":
    main()
