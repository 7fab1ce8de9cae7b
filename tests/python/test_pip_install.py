"""`pip install ./python` in a fresh environment, then the package from there: example, executable, command, doctests, two
ranks, and training with the engine of another installation.

    test_pip_install.py SOURCE [LOCKSTEP_WITH_ENGINE [WHEEL]]

Skips (exit 0, with a line) where there is no venv, pip or package index."""
import os
import pathlib
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(sys.argv[1])
ENGINE = (sys.argv[2] or None) if len(sys.argv) > 2 else None  # a `lockstep` that trains
WHEEL = sys.argv[3] if len(sys.argv) > 3 else str(SOURCE / "python")  # what pip installs
EXAMPLE = '''
import pathlib, lockstep
from lockstep import suggest
assert ".venv" in lockstep.__file__, lockstep.__file__
s = suggest(model_size="7B", gpus=8, dataset_size="1B tokens", studies=False)
assert s.layout.world == 8, s.layout
assert (pathlib.Path(lockstep.__file__).parent / "py.typed").exists()
import doctest, importlib
for name in ("lockstep", "lockstep._suggestion", "lockstep.suggest", "lockstep.errors", "lockstep.comm"):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0 and result.failed == 0, (name, result)
print(s)
'''
# Two ranks over the backend that is in the wheel, started by the executable that is in it.
RANKS = '''
import array, lockstep, lockstep.comm as comm
comm.init()
with lockstep.record("ranks") as run:
    total = comm.all_reduce(array.array("d", [1.0 + comm.rank()]), op=comm.Sum)
    run.step(loss=total[0])
assert list(total) == [3.0] and comm.backend() == "tcp", (total, comm.backend())
'''
TRAIN = '''
import sys, lockstep
try:
    lockstep.train(sys.argv[1], overrides={"stpes": 1})
except lockstep.SpecError as problem:
    assert "did you mean `steps`" in str(problem), problem
steps = []
run = lockstep.train(sys.argv[1], overrides={"steps": 5}, callbacks=[steps.append])
assert run.status == "done" and run.final_loss == steps[-1].loss and len(steps) == 5, run
print("trained", run)
'''
SYSTEM = {"linux-vdso", "libm", "libc", "ld-linux-x86-64", "libdl", "libpthread", "librt"}


def needed(file) -> set:
    text = subprocess.run(["ldd", str(file)], capture_output=True, text=True, timeout=60).stdout
    return {pathlib.Path(line.split()[0]).name.split(".so")[0] for line in text.splitlines() if ".so" in line}


def main() -> int:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        venv = pathlib.Path(folder) / ".venv"
        made = subprocess.run([sys.executable, "-m", "venv", str(venv)], capture_output=True, text=True, timeout=120)
        if made.returncode != 0:
            print(f"skipped: no venv here: {made.stdout}{made.stderr}")
            return 0
        python = str(venv / "bin" / "python")
        reached = subprocess.run([python, "-m", "pip", "download", "--no-deps", "-q", "-d", folder, "pybind11"],
                                 capture_output=True, text=True, timeout=120, env=environment)
        if reached.returncode != 0:
            print(f"skipped: no package index: {reached.stderr.strip().splitlines()[-1]}")
            return 0
        start = time.monotonic()
        subprocess.run([python, "-m", "pip", "install", "-q", WHEEL], check=True, timeout=5400,
                       env=environment, cwd=folder)
        print(f"pip install took {time.monotonic() - start:.0f} s")
        subprocess.run([python, "-c", EXAMPLE], check=True, timeout=60, env=environment, cwd=folder)
        subprocess.run([python, "-m", "lockstep.suggest", "--model-size", "7B", "--gpus", "8", "--dataset-size",
                        "1B tokens", "--no-studies"], check=True, timeout=60, env=environment, cwd=folder)
        lockstep = [str(venv / "bin" / "lockstep")]
        subprocess.run([*lockstep, "plan", "--model", "llama2-13b", "--cluster", "4x8xH100"], check=True, timeout=60,
                       env=environment, cwd=folder)
        job = SOURCE / "specs" / "jobs" / "gpt-bytes-demo.yaml"
        refused = subprocess.run([*lockstep, "train", str(job)], capture_output=True, text=True, timeout=60, cwd=folder,
                                 env={**environment, "LOCKSTEP_HOME": folder})
        assert refused.returncode == 4 and "the engine is not part of the Python wheel" in refused.stderr, refused
        package = next(venv.glob("lib/python3*/site-packages/lockstep"))
        for file in (*package.glob("_core*.so"), package / "liblockstep_comm_tcp.so", venv / "bin" / "lockstep"):
            assert needed(file) <= SYSTEM, (file, needed(file))
        subprocess.run([*lockstep, "launch", "--nproc", "2", "--max-restarts", "0", "--", python, "-c", RANKS], check=True,
                       timeout=300, cwd=folder, env={**environment, "LOCKSTEP_HOME": folder})
        if ENGINE is not None:
            subprocess.run([python, "-c", TRAIN, str(job)], check=True, timeout=600, cwd=folder,
                           env={**environment, "LOCKSTEP_HOME": folder, "LOCKSTEP_EXECUTABLE": ENGINE})
        else:
            print("no executable with an engine was named: train() was not tried")
        subprocess.run([str(venv / "bin" / "lockstep-suggest"), "--help"], check=True, timeout=60, env=environment)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
