"""What the benchmark drivers share: running a command, the machine's description, medians, reports. Standard library only."""
import argparse
import datetime
import json
import os
import pathlib
import platform
import socket
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
REPORTS = ROOT / "bench" / "reports"


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def memory_gib():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal"):
            return int(line.split()[1]) / 2**20
    return 0.0


def machine():
    return {"cpu": cpu_name(), "cores": os.cpu_count(), "memory_gib": round(memory_gib(), 1),
            "kernel": platform.release(), "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "load_before": os.getloadavg()[0], "commit": commit()}


def commit():
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def run(command, timeout, environment=None):
    """Standard output of a command; raises with the end of its standard error."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout,
                          env={**os.environ, **(environment or {})})
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def last_json(text):
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            return json.loads(line)
    raise RuntimeError("no JSON line in the output")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def named_binary(text):
    """NAME=BINARY, for --also: another build that is measured in the same run."""
    name, found, binary = text.partition("=")
    if not found or not name or not pathlib.Path(binary).is_file():
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=BINARY with a binary that exists")
    return name, binary


def summary(values):
    """Median, smallest, largest and relative spread of a list."""
    middle = statistics.median(values)
    return {"median": middle, "low": min(values), "high": max(values),
            "spread": (max(values) - min(values)) / middle if middle else 0.0}


def keep(name, data, markdown):
    """Writes NAME.json and NAME.md into bench/reports and prints the Markdown."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    (REPORTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    (REPORTS / f"{name}.md").write_text(markdown)
    print(markdown)
    print(f"kept in {REPORTS / name}.md and .json")
