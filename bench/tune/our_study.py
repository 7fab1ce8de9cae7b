"""One study by `lockstep tune` on one surface: the real command, its run store and the worker included."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time


def truth_of(program, surface, config):
    done = subprocess.run([str(program), *surface, "--truth-of"], check=True,
                          input=json.dumps({"trial": 0, "config": config}) + "\n", capture_output=True, text=True,
                          timeout=30)
    return json.loads(done.stdout)["truth"]


def run_study(lockstep, program, kind, instance, seed, trials, hide_names=False, importance=False):
    """What was chosen in truth, failures, seconds of wall clock and of CPU of the whole command, and its whole answer."""
    home = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-bench-"))
    try:
        surface = ["--kind", kind, "--instance", str(instance), *(["--hide-names"] if hide_names else [])]
        space = home / f"{kind}-{instance}.yaml"
        space.write_text(subprocess.run([str(program), *surface, "--space"], check=True, capture_output=True, text=True,
                                        timeout=30).stdout)
        worker = " ".join([str(program), *surface, "--noise-seed", str(seed)])
        command = [str(lockstep), "tune", "--space", str(space), "--worker", worker, "--trials", str(trials),
                   "--seed", str(seed), "--json", *([] if importance else ["--no-importance"])]
        start, before = time.monotonic(), os.times()
        done = subprocess.run(command, capture_output=True, text=True, timeout=600,
                              env={**os.environ, "LOCKSTEP_HOME": str(home / "store")})
        wall, after = time.monotonic() - start, os.times()
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-2000:]}")
        study = json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])
    finally:
        shutil.rmtree(home, ignore_errors=True)
    best = study.get("best")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return {"study": study, "truth": truth_of(program, surface, best["config"]) if best else None,
            "trials": study["trials"], "failed": study["failed"], "wall_seconds": wall, "cpu_seconds": cpu,
            "estimate": best["estimate"] if best else None}
