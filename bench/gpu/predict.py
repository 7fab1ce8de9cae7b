#!/usr/bin/env python3
"""The planner's prediction for our own step on one GPU against what it measures.

usage: bench/gpu/run predict                    # on the GPU: fits OUT/profile.json, times the held-out points: OUT/predict.json
       bench/gpu/predict.py OUT [--lockstep build/release/lockstep] [--profile OUT/profile.json]
The second asks `lockstep predict` for the points that were timed, under the profile, which was fitted to other models (its
own points), and writes bench/reports/h200_prediction.md, .json and .svg. Exit code 1: a limit was missed.
"""
import argparse
import csv
import io
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# (model, micro-batch, recompute): none of the models is one the profile is fitted to.
HELD_OUT = [("1.36b", 4, "none"), ("1.36b", 8, "none"), ("1.36b", 16, "none"), ("1.36b", 16, "selective"),
            ("1.36b", 16, "full"), ("7b", 2, "none"), ("7b", 4, "full"), ("124m", 64, "none")]
# Beyond the eight: fp8, accumulation (fp32 gradients that are summed), bf16 states have formulas too.
BEYOND = [("1.36b", 16, "selective", "--precision", "fp8"), ("1.36b", 8, "none", "--accumulation", "2")]
TIME_LIMIT, MEMORY_LIMIT = 0.04, 0.03


def run_json(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **more)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        return {"failed": (done.stdout + done.stderr)[-600:]}
    return json.loads(lines[-1])


def calibrate(arguments):
    """The profile's fused step measured anew, its tables kept: OUT/profile.json."""
    out = pathlib.Path(arguments.out).resolve()
    lockstep = str(pathlib.Path(arguments.executable).parent / "lockstep")
    done = subprocess.run([lockstep, "calibrate", "--device", "cuda", "--fused", "--tables",
                           str(ROOT / "specs/profiles/H200-lockstep.json"), "--output", str(out / "profile.json")],
                          capture_output=True, text=True, timeout=300)
    print((done.stdout + done.stderr)[-2000:], flush=True)
    return done.returncode


def part(arguments, last_json, save):
    """The profile, then every held-out point in a process of its own; what is there is saved after every one."""
    result = {"calibrate_exit": calibrate(arguments), "points": [], "beyond": []}
    for where, points in (("points", HELD_OUT), ("beyond", BEYOND)):
        for model, micro, recompute, *more in points:
            result[where].append(last_json([arguments.executable, "--json", "--model", model, "--micro-batch", str(micro),
                                           "--recompute", recompute, "--warmup", "3", "--steps", "7", "--no-pipelined", *more]))
            print(where, model, micro, recompute, *more, json.dumps(result[where][-1])[:200], flush=True)
            save(result)
    return result


def row_of(point):
    """A measured point as a row of `lockstep predict --rows`."""
    shape = point["shape"]
    return {"id": name_of(point), "source": "Lockstep", "hardware": "H200", "gpus": 1, "gpus_per_node": 1, "arch": "llama",
            **{k: shape[k] for k in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")}, "model": point["model"],
            "seq_len": point["sequence"], "global_batch_seqs": point["micro_batch"] * point["accumulation"],
            "micro_batch": point["micro_batch"], "grad_accum": point["accumulation"], "dp": 1, "tp": 1, "pp": 1, "cp": 1,
            "sharding": "none", "act_ckpt": point["recompute"], "precision": point["precision"]}


def name_of(point):
    more = f", {point['accumulation']} times" if point["accumulation"] > 1 else ""
    return f"{point['model']}, {point['micro_batch']} x {point['sequence']}{more}, {point['recompute']}, {point['precision']}"


def fit_points(profile):
    """The points of a profile in the form lockstep_gpu_step prints."""
    for p in profile["dense"]["points"]:
        m = p["model"]
        yield {"model": f"{m['layers']}x{m['hidden']}", "micro_batch": p["micro"], "accumulation": p["accumulation"],
               "sequence": p["sequence_length"], "recompute": p["recompute"], "precision": p["precision"],
               "step_ms": 1e3 * p["seconds"], "peak_gib": p["peak_bytes"] / 2**30,
               "shape": {"layers": m["layers"], "hidden": m["hidden"], "heads": m["heads"], "kv_heads": m["kv_heads"],
                         "ffn": m["ffn_hidden"], "vocab": m["vocab"]}}


def predicted(points, arguments):
    """Each point with what `lockstep predict` says of it."""
    points = [p for p in points if "failed" not in p]
    if not points:
        return []
    rows = [row_of(p) for p in points]
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys())
    writer.writeheader()
    writer.writerows(rows)
    table = pathlib.Path(arguments.out) / "predict-rows.csv"
    table.write_text(text.getvalue())
    said = run_json([arguments.lockstep, "predict", "--rows", str(table), "--output", "-", "--json", "--profile",
                     arguments.profile])
    if "predictions" not in said:
        sys.exit(f"lockstep predict: {said}")
    joined = []
    for point, row in zip(points, said["predictions"]):
        tokens = point["micro_batch"] * point["accumulation"] * point["sequence"]
        rate = row["tokens_per_second_per_gpu"]
        ms = {k: 1e3 * tokens / rate[k] for k in rate}
        joined.append({"point": name_of(point), "measured_ms": point["step_ms"], "measured_min_ms": point.get("min_ms"),
                       "measured_max_ms": point.get("max_ms"), "predicted_ms": ms["expected"],
                       "predicted_low_ms": ms["high"], "predicted_high_ms": ms["low"],
                       "time_error": ms["expected"] / point["step_ms"] - 1, "measured_gib": point["peak_gib"],
                       "predicted_gib": row["memory_gib"], "memory_error": row["memory_gib"] / point["peak_gib"] - 1,
                       "note": row["note"]})
    return joined


def mean_and_worst(rows, key):
    errors = [abs(r[key]) for r in rows]
    return sum(errors) / len(errors), max(errors)


def table_of(rows):
    text = ["| point | measured | predicted (90%) | off by | GiB measured | predicted | off by |", "|---|---|---|---|---|---|---|"]
    for r in rows:
        spread = f" ({r['measured_min_ms']:.1f} to {r['measured_max_ms']:.1f})" if r["measured_min_ms"] else ""
        text.append(f"| {r['point']} | {r['measured_ms']:.1f} ms{spread} | {r['predicted_ms']:.1f} ms ({r['predicted_low_ms']:.1f} "
                    f"to {r['predicted_high_ms']:.1f}) | {100 * r['time_error']:+.1f}% | {r['measured_gib']:.2f} "
                    f"| {r['predicted_gib']:.2f} | {100 * r['memory_error']:+.2f}% |")
    return text


def bars(rows):
    """Predicted beside measured, as shares of the measured, time above memory."""
    width, left, height, gap = 720, 250, 13, 10
    block = 4 * height + gap
    text = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{len(rows) * block + 40}" '
            'font-family="sans-serif" font-size="11">', f'<rect width="{width}" height="{len(rows) * block + 40}" fill="white"/>',
            '<text x="10" y="18" font-size="13">Measured (grey) and predicted (blue: step, green: memory), H200</text>']
    longest = max(max(r["measured_ms"], r["predicted_ms"]) for r in rows)
    most = max(max(r["measured_gib"], r["predicted_gib"]) for r in rows)
    room = width - left - 110
    for i, r in enumerate(rows):
        y = 30 + i * block
        text.append(f'<text x="10" y="{y + 2 * height}">{r["point"]}</text>')
        for j, (value, limit, colour, label) in enumerate((
                (r["measured_ms"], longest, "#999", f"{r['measured_ms']:.1f} ms"),
                (r["predicted_ms"], longest, "#3a6fb0", f"{r['predicted_ms']:.1f} ms ({100 * r['time_error']:+.1f}%)"),
                (r["measured_gib"], most, "#999", f"{r['measured_gib']:.1f} GiB"),
                (r["predicted_gib"], most, "#4a9a5b", f"{r['predicted_gib']:.1f} GiB ({100 * r['memory_error']:+.2f}%)"))):
            w = room * value / limit
            text.append(f'<rect x="{left}" y="{y + j * height}" width="{w:.1f}" height="{height - 2}" fill="{colour}"/>')
            text.append(f'<text x="{left + w + 4:.1f}" y="{y + (j + 1) * height - 3}">{label}</text>')
    return "\n".join([*text, "</svg>"]) + "\n"


def verdict(what, mean, limit):
    return f"| {what}: mean error at most {100 * limit:.0f}% | {100 * mean:.2f}% | {'yes' if mean <= limit else 'NO'} |"


def report(arguments):
    out, reports = pathlib.Path(arguments.out), ROOT / "bench/reports"
    measured = json.loads((out / "predict.json").read_text())
    profile = json.loads(pathlib.Path(arguments.profile).read_text())
    rows, beyond = predicted(measured["points"], arguments), predicted(measured["beyond"], arguments)
    fitted = predicted(list(fit_points(profile)), arguments)
    (time, worst_time), (memory, worst_memory) = (mean_and_worst(rows, k) for k in ("time_error", "memory_error"))
    inside = sum(r["predicted_low_ms"] <= r["measured_ms"] <= r["predicted_high_ms"] for r in rows)
    dense, seen = profile["dense"], measured["environment"]
    fit_time, _ = mean_and_worst(fitted, "time_error")
    failed = [p["failed"] for p in measured["points"] + measured["beyond"] if "failed" in p]
    text = ["# Predicted against measured: our step on one H200", "",
            f"Measured {seen.get('date')} on {seen.get('gpu')} (name, driver, power limit); torch {seen.get('torch')}, CUDA "
            f"{seen.get('cuda')}, cuDNN {seen.get('cudnn')}. Profile: {len(dense['points'])} steps of other models, measured "
            f"{dense['date']} with {dense['software']}. Made by `bench/gpu/run predict` and `bench/gpu/predict.py`; what "
            "is priced how: [docs/reference/gpu.md](../../docs/reference/gpu.md#what-the-planner-expects).", "",
            *([measured["note"], ""] if measured.get("note") else []), f"## The {len(rows)} points", "", "Median of seven steps after three, least and longest in brackets. Memory is the peak of "
            "arena and libtorch's allocator.", "", *table_of(rows), "",
            f"Time: mean error {100 * time:.2f}%, worst {100 * worst_time:.2f}%; {inside} of {len(rows)} inside their 90% "
            f"interval. Memory: mean {100 * memory:.2f}%, worst {100 * worst_memory:.2f}%.", "",
            "| limit | measured | |", "|---|---|---|", verdict("step time", time, TIME_LIMIT),
            verdict("peak memory", memory, MEMORY_LIMIT), "", "![bars](h200_prediction.svg)", ""]
    if beyond:
        text += ["## Beyond them", "", *table_of(beyond), ""]
    text += ["## What the profile was fitted to", "",
             f"{len(dense['constants'])} constants from {len(fitted)} steps and their operations; memory has none. Here the mean "
             f"error is {100 * fit_time:.2f}%. A model left out of the fit is off by {100 * dense['residuals']['time']:.1f}% (one "
             "sigma), which is what intervals are made of.", "", *table_of(fitted), "",
             "| constant | value |", "|---|---|", *(f"| {k} | {v:.4g} |" for k, v in dense["constants"].items())]
    text += ["", "Points that could not be measured: " + "; ".join(failed)] if failed else []
    (reports / "h200_prediction.md").write_text("\n".join(text).rstrip() + "\n")
    (reports / "h200_prediction.json").write_text(json.dumps(
        {"schema": "lockstep.bench.prediction/1", "environment": seen, "profile": {k: dense[k] for k in ("date", "software",
         "constants", "residuals")}, "points": rows, "beyond": beyond, "fitted": fitted, "time": {"mean": time, "worst": worst_time},
         "memory": {"mean": memory, "worst": worst_memory}, "failed": failed}, indent=1) + "\n")
    (reports / "h200_prediction.svg").write_text(bars(rows))
    print((reports / "h200_prediction.md").read_text())
    return 0 if time <= TIME_LIMIT and memory <= MEMORY_LIMIT and not failed else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--lockstep", default=str(ROOT / "build/release/lockstep"))
    parser.add_argument("--profile", default=str(ROOT / "specs/profiles/H200-lockstep.json"))
    return report(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
