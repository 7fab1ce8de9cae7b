"""BERT-large fine-tuning through `lockstep train` against torch.compile: bench/gpu/run's part and its section of the report.

Ours reads sentences from a file, PyTorch's tokens lie on the GPU before it starts. Sequences are full on both sides.
"""
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WARM, MEASURED, LIMIT = 10, 40, 1.0
SHAPES = ((32, 384), (128, 128))  # batch, sequence


def make_sentences(folder):
    if not (folder / "train.tsv").exists():
        subprocess.run([sys.executable, str(HERE / "bert_data.py"), str(folder)], check=True, timeout=60)


def ours(executable, folder, batch, sequence, *more):
    done = subprocess.run([executable, "train", str(ROOT / "specs/jobs/bert-large-h200.yaml"), f"data.path={folder}/train.tsv",
                           f"data.tokenizer={folder}", f"batch.micro={batch}", f"batch.sequence_length={sequence}",
                           f"steps={WARM + MEASURED}", "--json", "--report-steps", "--no-record", *more],
                          capture_output=True, text=True, timeout=120)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    times = sorted(1e3 * line["seconds"] for line in lines if "seconds" in line and line.get("step", 0) > WARM)
    if done.returncode != 0 or not times:
        return {"failed": (done.stdout + done.stderr)[-600:]}
    median, last = statistics.median(times), lines[-1]
    return {"batch": batch, "sequence": sequence, "step_ms": round(median, 2), "min_ms": round(times[0], 2),
            "max_ms": round(times[-1], 2), "sequences_per_second": round(batch / median * 1e3, 1),
            "mean_sequences_per_second": round(batch * len(times) / sum(times) * 1e3, 1),
            "loader_stall_ms": round(1e3 * last.get("loader_stall_seconds", 0) / last["steps"], 3),
            "peak_gib": round(last.get("peak_allocated_bytes", 0) / 2**30, 2), "loss": last.get("final_loss")}


def peer(batch, sequence, *more):
    return [sys.executable, "pytorch_bert.py", "--batch", str(batch), "--sequence", str(sequence), "--warmup", str(WARM),
            "--steps", str(MEASURED), *more]


def part(arguments, run_json, save):
    """`run_json(command)` gives the last JSON line of a program, `save(result)` keeps what there is."""
    folder = ROOT / "data/bert-bench"
    make_sentences(folder)
    executable = str(pathlib.Path(arguments.executable).parent / "lockstep")
    result = {"rows": []}
    for batch, sequence in SHAPES:
        row = {"batch": batch, "sequence": sequence}
        result["rows"].append(row)
        measures = [("ours", lambda: ours(executable, folder, batch, sequence)),
                    ("pytorch_best", lambda: run_json(peer(batch, sequence))),
                    ("ours_again", lambda: ours(executable, folder, batch, sequence))]
        if not arguments.no_best:
            measures.append(("pytorch", lambda: run_json(peer(batch, sequence, "--attention", "default", "--stream", "fp32"))))
        for name, measure in measures:
            row[name] = measure()
            print("bert", batch, sequence, name, json.dumps(row[name]), flush=True)
            save(result)
    return result


def speedup(row, side="pytorch_best"):
    """Of our two runs the slower one counts."""
    mine = [row[k]["sequences_per_second"] for k in ("ours", "ours_again") if "sequences_per_second" in row.get(k, {})]
    theirs = row.get(side, {}).get("sequences_per_second")
    return min(mine) / theirs if mine and theirs else None


def figure(value, digits=1):
    return "-" if value is None else f"{value:.{digits}f}"


def markdown(part_json):
    if not part_json:
        return []
    text = ["## BERT-large fine-tuning, bf16, dropout 0.1, AdamW", "",
            "fp32 master weights and states on both sides, full sequences; `lockstep train` from a file against torch.compile "
            "with tokens on the GPU, one batch again and again, so losses are not compared. *best PyTorch*: cuDNN attention and the residual stream in bf16; *torch.compile*: autocast "
            f"and the default attention. {WARM} steps to warm up, median of {MEASURED}; ours before and after PyTorch's run.", "",
            "| batch x sequence | torch.compile, sequences/s (ms) | best PyTorch | ours, sequences/s (ms, min to max) | again "
            "| x compile | x best | GiB best, ours | loader stall per step |", "|---|---|---|---|---|---|---|---|---|"]
    for row in part_json["rows"]:
        plain, best, mine, again = (row.get(k, {}) for k in ("pytorch", "pytorch_best", "ours", "ours_again"))
        both = lambda r: f"{figure(r.get('sequences_per_second'))} ({figure(r.get('step_ms'))})"  # noqa: E731
        text.append(
            f"| {row['batch']} x {row['sequence']} | {both(plain)} | {both(best)} | {figure(mine.get('sequences_per_second'))} "
            f"({figure(mine.get('step_ms'))}, {figure(mine.get('min_ms'))} to {figure(mine.get('max_ms'))}) "
            f"| {figure(again.get('sequences_per_second'))} | {figure(speedup(row, 'pytorch'), 3)} | {figure(speedup(row), 3)} "
            f"| {figure(best.get('mem_gib'))}, {figure(mine.get('peak_gib'))} | {figure(mine.get('loader_stall_ms'), 3)} ms |")
    return [*text, ""]


def verdicts(part_json):
    return [(f"BERT-large batch {row['batch']} x {row['sequence']}: at least the best torch.compile", speedup(row),
             (speedup(row) or 0) >= LIMIT) for row in (part_json or {}).get("rows", [])]
