#!/usr/bin/env python3
"""Injected causes on real runs (tests/diagnose/README.md): is the right one named first, and nothing on healthy runs?"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time

import yaml

import templates

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("LOCKSTEP_BUILD_DIR", SOURCE / "build/release"))
KEYS = {"about", "kind", "job", "overrides", "pace", "chaos", "environment", "network", "load", "nvml", "nodes", "letters",
        "expect"}
MOST_SECONDS = 300
ADDRESS = "10.77.0.1"  # of the namespace
WANTED_SHARE = 29 / 30


class Case:
    def __init__(self, path):
        self.name = path.stem
        self.fields = yaml.safe_load(path.read_text())
        unknown = set(self.fields) - KEYS
        if unknown or not {"about", "job", "expect"} <= set(self.fields):
            raise SystemExit(f"{path}: unknown {sorted(unknown)} or one of about, job, expect is missing")
        expect = self.fields["expect"]
        self.healthy = expect == "healthy"
        causes = [] if self.healthy else expect["cause"]
        self.causes = [causes] if isinstance(causes, str) else causes
        self.ranks = None if self.healthy else expect.get("ranks")

    def get(self, key, default=None):
        return self.fields.get(key, default)

    def accepts(self, findings):
        if self.healthy or not findings:
            return self.healthy and not findings
        first = findings[0]
        return first["cause"] in self.causes and (self.ranks is None or sorted(first["ranks"]) == sorted(self.ranks))


def world_of(job):
    size = 1
    for axis in ("pp", "dp", "shard", "cp", "tp"):
        size *= int(job.get("layout", {}).get(axis, 1))
    return size


def override(job, assignment):
    """Only to know the number of ranks; the run itself applies it again."""
    key, value = assignment.split("=", 1)
    place = job
    *folders, last = key.split(".")
    for name in folders:
        place = place.setdefault(name, {})
    place[last] = yaml.safe_load(value)


def chaos_of(case, world):
    events = []
    for phase, delay in case.get("pace", {}).items():
        if isinstance(delay, list):
            events += [f"slow rank={rank} phase={phase} delay={one}" for rank, one in enumerate(delay)]
        else:
            events.append(f"slow rank={','.join(map(str, range(world)))} phase={phase} delay={delay}")
    if case.get("chaos"):
        events.append(case.get("chaos"))
    return "; ".join(events)


@contextlib.contextmanager
def network(settings, several_nodes):
    """A namespace with an address of its own, whose loopback is as slow as `settings` of tc say; its name, or nothing."""
    if not settings and not several_nodes:
        yield None
        return
    name = f"lockstep-case-{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        inside = ["ip", "netns", "exec", name]
        commands = ["ip link set lo mtu 1500 up", "ip link add wire type veth peer name other",
                    f"ip address add {ADDRESS}/24 dev wire", "ip link set wire up", "ip link set other up"]
        if settings:
            commands.append(f"tc qdisc add dev lo root {settings}")
        for command in commands:
            subprocess.run([*inside, *command.split()], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False)


def priority(processes_beside):
    """What else this machine does is no part of a case, unless the case is that there is too much of it."""
    return ["chrt", "--rr", "5"] if os.geteuid() == 0 and processes_beside < os.cpu_count() else []


@contextlib.contextmanager
def load(processes):
    burning = [subprocess.Popen([*priority(processes), sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


def environment_of(case, folder):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_CASE")}
    environment["LOCKSTEP_HOME"] = str(folder / "home")
    environment.update({name: str(value) for name, value in case.get("environment", {}).items()})
    if case.get("nvml"):
        fake = BUILD / "tests/fake_nvml/libfake_nvml.so"
        if not fake.exists():
            sys.exit(f"{fake} is not there: build the target fake_nvml")
        environment["LOCKSTEP_NVML"] = str(fake)
        environment["FAKE_NVML"] = f"{case.get('nvml')['hot']}:{case.get('nvml')['clock']}"
    return environment


def prefix_of(case, namespace):
    return [*(["ip", "netns", "exec", namespace] if namespace else []), *priority(case.get("load", 0))]


def start_rank(case, command, rank, world, prefix, environment, folder):
    """One rank as torchrun would start it, on a host of its node's name."""
    node = case.get("nodes")[rank]
    local = case.get("nodes")[:rank].count(node)
    own = {**environment, "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(local),
           "LOCAL_WORLD_SIZE": str(case.get("nodes").count(node)), "MASTER_ADDR": ADDRESS, "MASTER_PORT": "29731",
           "LOCKSTEP_TOKEN": "of-this-case"}
    script = 'hostname "$0" && mount -t tmpfs none /dev/shm && exec "$@"'  # what ranks of other nodes cannot share
    return subprocess.Popen([*prefix, "unshare", "--uts", "--mount", "sh", "-c", script, f"node{node}", *command], cwd=folder, env=own,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def train(case, folder, environment, prefix, world):
    command = [str(BUILD / "lockstep"), "train", str(folder / "job.yaml"), *case.get("overrides", []), "--backend", "tcp"]
    chaos = chaos_of(case, world)
    if chaos:
        command += ["--chaos", chaos]
    if case.get("nodes"):
        ranks = [start_rank(case, command, rank, world, prefix, environment, folder) for rank in range(world)]
        errors = [rank.communicate(timeout=MOST_SECONDS)[1] for rank in ranks]
        return max(rank.returncode for rank in ranks), "\n".join(errors)
    done = subprocess.run([*prefix, *command], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=MOST_SECONDS, check=False)
    return done.returncode, done.stderr


def diagnose(environment):
    done = subprocess.run([str(BUILD / "lockstep"), "diagnose", "last", "--json"], env=environment, capture_output=True,
                          text=True, timeout=60, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stderr.strip())
    return json.loads(done.stdout)["findings"]


def run_case(case, keep):
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f"lockstep-case-{case.name}-"))
    try:
        job = case.get("job")
        job = templates.job(job, folder) if isinstance(job, str) else dict(job)
        if job["data"]["path"] in templates.MADE:
            job["data"] = {**job["data"], "path": templates.MADE[job["data"]["path"]](folder)}
        if case.get("letters"):
            job["data"] = templates.text(folder, case.get("letters"))
        (folder / "job.yaml").write_text(json.dumps(job))  # JSON is YAML
        for assignment in case.get("overrides", []):
            override(job, assignment)
        environment = environment_of(case, folder)
        began = time.monotonic()
        with network(case.get("network"), bool(case.get("nodes"))) as namespace, load(case.get("load", 0)):
            code, errors = train(case, folder, environment, prefix_of(case, namespace), world_of(job))
        seconds = time.monotonic() - began
        ends_badly = {"crash", "hang", "hardware_error"} & set(case.causes)
        if code != 0 and not ends_badly:
            return {"case": case, "passed": False, "findings": [], "seconds": seconds, "note": errors.strip()[-400:]}
        findings = diagnose(environment)
        return {"case": case, "passed": case.accepts(findings), "findings": findings, "seconds": seconds, "note": ""}
    except (subprocess.TimeoutExpired, RuntimeError, OSError, subprocess.CalledProcessError) as error:
        return {"case": case, "passed": False, "findings": [], "seconds": 0.0, "note": str(error)[-400:]}
    finally:
        if keep:
            print(f"  kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def first_of(result):
    if result["note"]:
        return "did not run: " + " ".join(result["note"].split())[:80]
    if not result["findings"]:
        return "nothing"
    first = result["findings"][0]
    ranks = " of " + ",".join(map(str, first["ranks"])) if first["ranks"] else ""
    return f"{first['cause']}{ranks}, {first['cost_percent']:.0f}%"


def expected_of(case):
    if case.healthy:
        return "nothing"
    ranks = " of " + ",".join(map(str, case.ranks)) if case.ranks else ""
    return " or ".join(case.causes) + ranks


def table(results):
    rows = ["| case | what | expected | first finding | |", "|---|---|---|---|---|"]
    rows += [f"| {r['case'].name} | {r['case'].get('about')} | {expected_of(r['case'])} | {first_of(r)} | "
             f"{'yes' if r['passed'] else '**no**'} |" for r in results]
    return "\n".join(rows)


def summary(results):
    injected = [r for r in results if not r["case"].healthy]
    healthy = [r for r in results if r["case"].healthy]
    kinds = {r["case"].get("kind", r["case"].causes[0]) for r in injected}
    right = sum(r["passed"] for r in injected)
    silent = sum(r["passed"] for r in healthy)
    text = (f"{right} of {len(injected)} injected causes of {len(kinds)} kinds came first; "
            f"{silent} of {len(healthy)} healthy runs have no finding.")
    return text, right >= WANTED_SHARE * len(injected) - 1e-9 and silent == len(healthy)


def write_report(path, results):
    text, _ = summary(results)
    seconds = sum(r["seconds"] for r in results)
    page = f"""# Injected causes

`tests/diagnose/injected.py` on {platform.machine()}, {os.cpu_count()} cores, {datetime.date.today()}: {text} Training took {seconds:.0f} s
in all. How cases are made: [tests/diagnose/README.md](../../tests/diagnose/README.md). Cases that the authors of the detectors did not make,
as they came out when they were first opened: [diagnose_independent.md](diagnose_independent.md).

{table(results)}
"""
    pathlib.Path(path).write_text(page)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", action="append", help="folder of cases; more than once for several")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--report", help="write the table there")
    parser.add_argument("--keep", action="store_true", help="keep the folders of the runs")
    arguments = parser.parse_args()
    folders = arguments.cases or [pathlib.Path(__file__).parent / name for name in ("cases", "independent")]
    cases = [Case(path) for folder in folders for path in sorted(pathlib.Path(folder).glob("*.yaml"))]
    results = []
    for case in (case for case in cases if arguments.only in case.name):
        results.append(run_case(case, arguments.keep))
        mark = "ok  " if results[-1]["passed"] else "FAIL"
        print(f"{mark} {case.name}: expected {expected_of(case)}, found {first_of(results[-1])} "
              f"({results[-1]['seconds']:.1f} s)", flush=True)
        if not results[-1]["passed"]:
            for finding in results[-1]["findings"]:
                print(f"     {finding['cause']} {finding['ranks']} {finding['cost_percent']:.1f}%: {finding['evidence']}")
    text, passed = summary(results)
    print(text)
    if arguments.report:
        write_report(arguments.report, results)
    return 0 if passed and results else 1


if __name__ == "__main__":
    sys.exit(main())
