"""A Slurm of one file for tests without Slurm: `install(folder)` makes sbatch, squeue, scontrol, scancel, srun there.

sbatch keeps its words and environment in <folder>/sbatch-<id>.json. With FAKE_SLURM=run it also starts the script, once per
task of an array, on this machine; otherwise the job is what <folder>/job says (a line of `scontrol show job`).
"""
import json
import os
import pathlib
import signal
import subprocess
import sys

NAMES = ("sbatch", "squeue", "scontrol", "scancel", "srun")


def install(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name in NAMES:
        path = folder / name
        path.write_text(f"#!/bin/sh\nexec {sys.executable} {pathlib.Path(__file__).resolve()} {folder} {name} \"$@\"\n")
        path.chmod(0o755)
    return folder


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def sbatch(folder, words):
    number = 1 + len(list(folder.glob("sbatch-*.json")))
    flags = dict(word[2:].partition("=")[::2] for word in words if word.startswith("--"))
    script = next(index for index, word in enumerate(words) if not word.startswith("--"))
    tasks = {}
    if os.environ.get("FAKE_SLURM") == "run":
        first, _, last = flags["array"].partition("-")
        for task in range(int(first), int(last or first) + 1):
            out = flags["output"].replace("%A", str(number)).replace("%a", str(task)).replace("%%", "%")
            tasks[task] = subprocess.Popen(["bash", *words[script:]], cwd=flags["chdir"], stdin=subprocess.DEVNULL,
                                           stdout=open(out, "a"), stderr=subprocess.STDOUT, start_new_session=True,
                                           env={**os.environ, "SLURM_ARRAY_TASK_ID": str(task)}).pid
    (folder / f"sbatch-{number}.json").write_text(json.dumps(
        {"words": words, "environment": dict(os.environ), "tasks": tasks, "script": pathlib.Path(words[script]).read_text()}))
    print(number)


def jobs(folder):
    for path in sorted(folder.glob("sbatch-*.json")):
        yield path.stem.split("-")[1], json.loads(path.read_text())


def squeue(folder, words):
    wanted = words[words.index("-j") + 1].split(",")
    for number, job in jobs(folder):
        for task, pid in job["tasks"].items():
            if number in wanted:
                cancelled = (folder / f"cancelled-{number}").exists()
                state = "RUNNING" if alive(pid) else "CANCELLED" if cancelled else "NODE_FAIL"
                print(f"{number}_{task}|{state}|None|n{task}")


def scontrol(folder, words):
    if words[0] == "show":
        try:
            print((folder / "job").read_text().strip())
        except OSError:
            sys.exit("slurm_load_jobs error: Invalid job id specified")


def scancel(folder, words):
    with open(folder / "scancel.txt", "a") as record:
        record.write(json.dumps(words) + "\n")
    for number, job in jobs(folder):
        for task, pid in job["tasks"].items():
            if (number in words or f"{number}_{task}" in words) and alive(pid):
                os.killpg(pid, signal.SIGTERM)
        if number in words:
            (folder / f"cancelled-{number}").touch()


def srun(folder, words):
    print((folder / "srun-help").read_text() if (folder / "srun-help").exists() else "Usage: srun [OPTIONS(0)...]")


if __name__ == "__main__":
    globals()[sys.argv[2]](pathlib.Path(sys.argv[1]), sys.argv[3:])
