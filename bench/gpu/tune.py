"""One study of `lockstep tune` on the GPU: micro-batch, recompute, precision, precision of states and graphs of the 1.36B step
at 32 sequences per optimizer step (tune.yaml), within 125 GPU-seconds. bench/gpu/run's part; writes OUT/recipe and OUT/study.txt.
"""
import pathlib
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
KNOBS = ("micro-batch", "accumulation", "recompute", "precision", "state", "graph")


def part(arguments, run_json, save):
    out = pathlib.Path(arguments.out).resolve()
    lockstep = str(pathlib.Path(arguments.executable).parent / "lockstep")
    placeholders = " ".join(f"--{knob} {{{knob.replace('-', '_')}}}" for knob in KNOBS)
    command = f"{arguments.executable} --model 1.36b {placeholders} --init torch --warmup 1 --steps 2 --no-pipelined --json"
    study = subprocess.run([lockstep, "tune", "--space", str(HERE / "tune.yaml"), "--command", command, "--trials", "20",
                            "--trial-seconds", "25", "--budget", "125gpu-seconds", "--name", "h200-1.36b"],
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400)
    print(study.stdout, flush=True)
    (out / "study.txt").write_text(study.stdout)
    recipe = subprocess.run([lockstep, "recipe", "last", "--output", str(out / "recipe"), "--full"], timeout=60)
    result = {"study_exit": study.returncode, "recipe_exit": recipe.returncode}
    save(result)
    return result
