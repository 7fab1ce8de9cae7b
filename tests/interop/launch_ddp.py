"""A DDP script of PyPI's torch runs unchanged under `lockstep launch`, loses a rank, and ends with the same losses.

    launch_ddp.py LOCKSTEP    (with a python that has torch)
"""
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "bench" / "launch" / "ddp_script.py"


def losses(folder):
    path = folder / "steps.txt"
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return {int(row[0]): float(row[1]) for row in rows if len(row) == 4}


def launch(lockstep, folder, kill):
    folder.mkdir()
    environment = {**os.environ, "LOCKSTEP_HOME": str(folder / "home"), "OMP_NUM_THREADS": "1", "PYTHON_EXEC": sys.executable}
    process = subprocess.Popen([lockstep, "launch", "--nproc-per-node", "3", "--health", "off", SCRIPT, folder, "--steps", "15"],
                               env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while kill and process.poll() is None and max(losses(folder), default=0) < 7:
        time.sleep(0.05)
    if kill:
        os.kill(int((folder / "rank-1.pid").read_text()), signal.SIGKILL)
    out, _ = process.communicate(timeout=800)
    assert process.returncode == 0, out
    assert ("rank 1 was killed" in out) == kill, out
    return losses(folder)


with tempfile.TemporaryDirectory() as name:
    whole = launch(sys.argv[1], pathlib.Path(name) / "whole", kill=False)
    killed = launch(sys.argv[1], pathlib.Path(name) / "killed", kill=True)
assert sorted(whole) == list(range(1, 16)), whole
# Not bit for bit: DDP makes its buckets anew after the first step of a process, and may sum in another order until then.
assert all(math.isclose(whole[step], killed[step], rel_tol=1e-4) for step in whole), (whole, killed)
assert sorted(killed) == sorted(whole), killed
print("ok: 15 steps, the same losses with a killed rank")
