"""`pip install ./python` in a fresh environment, then the package from there: example, executable, command, doctests.

Skips (exit 0, with a line) where there is no venv, pip or package index."""
import os
import pathlib
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(sys.argv[1])
EXAMPLE = '''
import pathlib, lockstep
from lockstep import suggest
assert ".venv" in lockstep.__file__, lockstep.__file__
s = suggest(model_size="7B", gpus=8, dataset_size="1B tokens", studies=False)
assert s.layout.world == 8, s.layout
assert (pathlib.Path(lockstep.__file__).parent / "py.typed").exists()
import doctest, importlib
for name in ("lockstep", "lockstep._suggestion", "lockstep.suggest"):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0 and result.failed == 0, (name, result)
print(s)
'''


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
        subprocess.run([python, "-m", "pip", "install", "-q", str(SOURCE / "python")], check=True, timeout=5400,
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
        subprocess.run([str(venv / "bin" / "lockstep-suggest"), "--help"], check=True, timeout=60, env=environment)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
