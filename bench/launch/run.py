"""One rank of a DDP script is killed at random steps, under `lockstep launch` and under torchrun beside it.

    bench/launch/run.py --python /tmp/venv/bin/python [--kills 10] [--series 5] [--out bench/reports/launch.md]

Every kill is a launch of its own: a rank gets SIGKILL at a seeded random step, and the launch comes back when it ends
with exit code 0 and every step done; it is given 60 s for its next step, and then 60 s to end. In a series one launch
gets all kills. The time is from the kill to the next step
that is done by new processes.
"""
import argparse
import datetime
import os
import pathlib
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RANKS = 4
PATIENCE = 60.0  # for a launch to do its next step, or to end


def steps_in(folder):
    try:
        lines = (folder / "steps.txt").read_text().splitlines()
    except OSError:
        return []
    rows = [line.split() for line in lines]
    return [(int(row[0]), float(row[1]), float(row[2]), int(row[3])) for row in rows if len(row) == 4]


class Launch:
    """One run of the script under a launcher, with kills."""

    def __init__(self, command, steps, environment):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="launch-bench-"))
        self.log = open(self.folder / "output.txt", "w")
        script = [str(HERE / "ddp_script.py"), str(self.folder), "--steps", str(steps)]
        self.process = subprocess.Popen([*command, *script], stdout=self.log, stderr=subprocess.STDOUT,
                                        env={**environment, "LOCKSTEP_HOME": str(self.folder / "home"),
                                             "LAUNCH_BENCH": str(self.folder)},
                                        process_group=0)
        self.steps = steps
        self.left = 0  # processes that outlived the launcher

    def wait_for(self, condition):
        deadline = time.time() + PATIENCE
        while time.time() < deadline:
            found = condition()
            if found:
                return found
            if self.process.poll() is not None:
                return condition()
            time.sleep(0.005)
        return None

    def kill_at(self, step, rank):
        """Seconds until the next step of new processes; None: there was none."""
        reached = self.wait_for(lambda: [row for row in steps_in(self.folder) if row[0] >= step])
        if not reached:
            return None
        before = reached[-1][3]
        os.kill(int((self.folder / f"rank-{rank}.pid").read_text()), signal.SIGKILL)
        killed = time.time()
        again = self.wait_for(lambda: [row for row in steps_in(self.folder) if row[2] > killed and row[3] != before])
        return again[0][2] - killed if again else None

    def came_back(self):
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            code = None
        done = {row[0] for row in steps_in(self.folder)}
        return code == 0 and done == set(range(1, self.steps + 1))

    def losses(self):
        return {row[0]: row[1] for row in steps_in(self.folder)}

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        # torchrun's ranks are in sessions of their own and outlive it; those of one launch must not meet the next one's.
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and f"LAUNCH_BENCH={self.folder}".encode() in (entry / "environ").read_bytes():
                    self.left += 1
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                pass
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def median_and_most(seconds):
    return f"{statistics.median(seconds):.2f} s, {max(seconds):.2f} s" if seconds else "-"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="with torch; its torchrun is used")
    parser.add_argument("--lockstep", default=str(ROOT / "build/release/lockstep"))
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--series", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--launcher", action="append", help="only this one of the table; may be given several times")
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    torchrun = [arguments.python, "-m", "torch.distributed.run"]
    most = str(max(10, arguments.series))
    launchers = {
        "lockstep launch": [arguments.lockstep, "launch", "--nproc-per-node", str(RANKS), "--max-restarts", most],
        "torchrun --standalone": [*torchrun, "--standalone", "--nproc-per-node", str(RANKS), "--max-restarts", most],
        "torchrun (static rendezvous)": [*torchrun, "--nproc-per-node", str(RANKS), "--max-restarts", most],
    }
    launchers = {name: command for name, command in launchers.items() if not arguments.launcher or name in arguments.launcher}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": arguments.python}
    rng = random.Random(arguments.seed)
    kills = [(rng.randint(3, arguments.steps - 5), rng.randrange(RANKS)) for _ in range(arguments.kills)]
    back = dict.fromkeys(launchers, 0)
    seconds = {name: [] for name in launchers}
    losses = {name: [] for name in launchers}
    for number, (step, rank) in enumerate(kills, 1):
        for name, command in launchers.items():
            launch = Launch(command, arguments.steps, environment)
            took = launch.kill_at(step, rank)
            well = took is not None and launch.came_back()
            losses[name].append(launch.losses())
            launch.close()
            back[name] += well
            if took is not None and well:
                seconds[name].append(took)
            shown = f"{took:.2f} s" if took is not None else "no step"
            print(f"kill {number}: rank {rank} at step {step}: {name}: {'back' if well else 'LOST'}, {shown}", flush=True)
    series = {}
    if arguments.series:
        total = 10 * arguments.series + 10
        plan = [(10 * i + rng.randint(3, 8), rng.randrange(RANKS)) for i in range(arguments.series)]
        for name, command in launchers.items():
            launch = Launch(command, total, environment)
            took = []
            for step, rank in plan:
                seconds_of_this = launch.kill_at(step, rank)
                if seconds_of_this is None:
                    break
                took.append(seconds_of_this)
            series[name] = (launch.came_back(), len(took), took)
            launch.close()
            print(f"series: {name}: {series[name]}", flush=True)
    report = write_report(arguments, back, seconds, losses, series)
    print(report)
    if arguments.out:
        arguments.out.write_text(report)
    return 0 if back.get("lockstep launch", arguments.kills) == arguments.kills else 1


def write_report(arguments, back, seconds, losses, series):
    versions = subprocess.run([arguments.python, "-c", "import torch, sys; print(torch.__version__, sys.version.split()[0])"],
                              capture_output=True, text=True, check=True).stdout.split()
    cpu = next((line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.machine())
    whole = [row for row in losses.get("lockstep launch", []) if row]
    apart = max((abs(row[step] / loss - 1) for row in whole for step, loss in whole[0].items() if step in row), default=0)
    lines = [
        "# A rank is killed: `lockstep launch` beside torchrun", "",
        f"{datetime.date.today()}, {os.cpu_count()} cores of {cpu}, load {os.getloadavg()[0]:.1f} at the end; torch "
        f"{versions[0]}, Python {versions[1]}. `bench/launch/run.py --kills {arguments.kills} --series {arguments.series} "
        f"--seed {arguments.seed}`.", "",
        f"`bench/launch/ddp_script.py` (DistributedDataParallel on Gloo, {RANKS} ranks, a checkpoint every 5 steps) runs "
        "unchanged under each launcher, with the same number of restarts allowed. torchrun is as PyPI ships it; its default "
        "is `--max-restarts 0`, with which no kill is survived.", "",
        f"One kill per launch, {arguments.kills} launches: SIGKILL to a random rank at a random step. A launch has "
        f"{PATIENCE:.0f} s for its next step, and then {PATIENCE:.0f} s to end well. The time is from the kill to the next "
        "step that new processes finished (median, most).", "",
        "| launcher | came back | kill to next step |", "|---|---|---|"]
    for name in back:
        lines.append(f"| `{name}` | {back[name]} of {arguments.kills} | {median_and_most(seconds[name])} |")
    if whole:
        lines += ["", f"The losses of the {len(whole)} launches under `lockstep launch` differ by {apart:.1e} at most, step by "
                  "step (DDP makes its buckets anew after the first step of a process, and may sum in another order until then)."]
    lines += ["", "torchrun --standalone restarts and fails again where the new ranks read the addresses of the dead ones from the "
              "store that its agent keeps (`Gloo connectFullMesh failed ... Connection refused`). With "
              "`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` each restart has a store of its own; [recovery.md](recovery.md) has "
              "torchrun measured that way."]
    if series:
        lines += ["", f"{arguments.series} kills in one launch:", "", "| launcher | kills recovered from | ended well | kill to next step |",
                  "|---|---|---|---|"]
        for name, (well, recovered, took) in series.items():
            lines.append(f"| `{name}` | {recovered} of {arguments.series} | {'yes' if well else 'no'} | {median_and_most(took)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
