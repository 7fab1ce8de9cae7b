"""ResNet-50 through `lockstep train` against torch.compile: bench/gpu/run's part and its section of the report.

Ours reads its images from files, PyTorch's lie on the GPU before it starts. Both take 20 steps to warm up; ours are timed
between the ends of steps, PyTorch's by events between them.
"""
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WARM, MEASURED, LIMIT = 20, 60, 1.0


def make_images(folder):
    if not (folder / "train-images.npy").exists():
        subprocess.run([sys.executable, str(ROOT / "scripts/make_image_arrays.py"), str(folder)], check=True, timeout=120)


def ours(executable, images, batch, steps=WARM + MEASURED):
    done = subprocess.run([executable, "train", str(ROOT / "specs/jobs/resnet50-h200.yaml"), f"data.path={images}",
                           f"batch.micro={batch}", f"steps={steps}", "--json", "--report-steps", "--no-record"],
                          capture_output=True, text=True, timeout=200)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    steps_seen = [line for line in lines if "seconds" in line and "schema" not in line][WARM:]
    if done.returncode != 0 or not steps_seen:
        return {"failed": (done.stdout + done.stderr)[-600:]}
    times = sorted(1e3 * step["seconds"] for step in steps_seen)
    median = statistics.median(times)
    last = lines[-1]
    return {"batch": batch, "step_ms": round(median, 2), "min_ms": round(times[0], 2), "max_ms": round(times[-1], 2),
            "images_per_second": round(batch / median * 1e3, 1),
            "mean_images_per_second": round(batch * len(times) / sum(times) * 1e3, 1),
            "loader_stall_ms": round(1e3 * last.get("loader_stall_seconds", 0) / last["steps"], 3),
            "peak_gib": round(last.get("peak_allocated_bytes", 0) / 2**30, 2), "loss": steps_seen[-1].get("loss")}


def part(arguments, run_json, save):
    """`run_json(command)` gives the last JSON line of a program, `save(result)` keeps what there is."""
    images = ROOT / "data/images224"
    make_images(images)
    executable = str(pathlib.Path(arguments.executable).parent / "lockstep")
    result = {"rows": []}
    for batch in (256,):
        row = {"batch": batch}
        result["rows"].append(row)
        for name, measure in (("ours", lambda: ours(executable, images, batch)),
                              ("pytorch", lambda: run_json([sys.executable, "pytorch_resnet.py", "--batch", str(batch),
                                                            "--warm", str(WARM), "--steps", str(MEASURED)])),
                              ("ours_again", lambda: ours(executable, images, batch))):
            row[name] = measure()
            print("resnet", batch, name, json.dumps(row[name]), flush=True)
            save(result)
    return result


def speedup(row):
    """Of our two runs the slower one counts."""
    mine = [row[k]["images_per_second"] for k in ("ours", "ours_again") if "images_per_second" in row.get(k, {})]
    theirs = row.get("pytorch", {}).get("images_per_second")
    return min(mine) / theirs if mine and theirs else None


def markdown(part_json):
    if not part_json:
        return []
    text = ["## ResNet-50, 224x224, bf16, SGD with momentum", "",
            f"Channels last and fp32 master weights on both sides; `lockstep train` from files against torch.compile from images "
            f"on the GPU, one batch again and again, so losses are not compared. {WARM} steps to warm up, median of {MEASURED}; ours before and after PyTorch's run.", "",
            "| batch | torch.compile, images/s (ms) | ours, images/s (ms, min to max) | again | x compile | GiB theirs, ours "
            "| loader stall per step, the wait for the first batch included |", "|---|---|---|---|---|---|---|"]
    for row in part_json["rows"]:
        peer, mine, again = (row.get(k, {}) for k in ("pytorch", "ours", "ours_again"))
        ratio = speedup(row)
        text.append(
            f"| {row['batch']} | {peer.get('images_per_second', '-')} ({peer.get('step_ms', '-')}) "
            f"| {mine.get('images_per_second', '-')} ({mine.get('step_ms', '-')}, {mine.get('min_ms', '-')} to "
            f"{mine.get('max_ms', '-')}) | {again.get('images_per_second', '-')} | {'-' if ratio is None else f'{ratio:.3f}'} "
            f"| {peer.get('mem_gib', '-')}, {mine.get('peak_gib', '-')} | {mine.get('loader_stall_ms', '-')} ms |")
    return [*text, ""]


def verdicts(part_json):
    return [(f"ResNet-50 batch {row['batch']}: at least torch.compile", speedup(row), (speedup(row) or 0) >= LIMIT)
            for row in (part_json or {}).get("rows", [])]
