"""Joins the parts of bench/gpu/run into bench/reports/gpu.md and gpu.json."""
import json

import bert
import picture
import resnet

LIMITS = {("1.36b", 16): (1.12, 0.9), ("1.36b", 8): (1.12, 0.9), ("7b", 2): (1.06, 1.0), ("124m", 64): (1.20, 0.9)}
FP8_LIMIT, FIRST_STEP_LIMIT = 1.35, 6.0
FAMILIES = ("gemm", "attention", "norm", "rope", "swiglu", "loss", "embedding", "quantize", "optimizer", "copy")


def number(value, digits=1, unit=""):
    return "-" if value is None else f"{value:.{digits}f}{unit}"


def summarise(model, row):
    """Figures of one row; what a side could not measure is None."""
    mine, peer, best, wall = (row.get(k, {}) for k in ("ours", "pytorch", "pytorch_best", "wall"))
    ms, theirs, strongest = mine.get("step_ms"), peer.get("step_ms"), best.get("step_ms")
    ratio = lambda a, b: a / b if a and b else None  # noqa: E731
    return {"model": model, "micro_batch": row["micro_batch"], "pytorch_ms": theirs, "pytorch_best_ms": strongest,
            "ours_ms": ms, "ours_min_ms": mine.get("min_ms"), "ours_max_ms": mine.get("max_ms"),
            "ours_tokens_per_second": mine.get("tokens_per_second"), "ours_mfu": mine.get("mfu"),
            "pytorch_gib": peer.get("mem_gib"), "pytorch_best_gib": best.get("mem_gib"), "ours_gib": mine.get("peak_gib"),
            "speedup": ratio(theirs, ms), "speedup_over_best": ratio(strongest, ms),
            "memory_ratio": ratio(mine.get("peak_gib"), peer.get("mem_gib")),
            "wall_ms": wall.get("wall_ms"), "share_of_the_wall": ratio(wall.get("wall_ms"), ms),
            "first_step_seconds": mine.get("first_step_seconds"), "input_stall_ms": mine.get("input_stall_ms")}


def speed_tables(parts):
    rows, fp8, families = [], [], []
    for model in ("1.36b", "7b", "124m"):
        for row in parts.get(model, {}).get("rows", []):
            rows.append(summarise(model, row))
            families.append((f"{model}, micro-batch {row['micro_batch']}", row.get("ours", {}), row.get("wall", {})))
            if "ours_fp8" in row:
                fp8.append(summarise(model, row | {"ours": row["ours_fp8"], "wall": {}}))  # the wall is bf16's
                families.append((f"{model}, micro-batch {row['micro_batch']}, fp8", row["ours_fp8"], {}))
    return rows, fp8, families


def verdicts(rows, fp8):
    out = []
    for r in rows:
        speed, memory = LIMITS[(r["model"], r["micro_batch"])]
        name = f"{r['model']} micro-batch {r['micro_batch']}"
        out.append((f"{name}: at least {speed} times torch.compile", r["speedup"], r["speedup"] and r["speedup"] >= speed))
        out.append((f"{name}: at least the best PyTorch", r["speedup_over_best"],
                    r["speedup_over_best"] and r["speedup_over_best"] >= 1.0))
        out.append((f"{name}: peak memory at most {memory} of torch.compile's", r["memory_ratio"],
                    r["memory_ratio"] and r["memory_ratio"] <= memory))
        out.append((f"{name}: first step within {FIRST_STEP_LIMIT:.0f} s of the process's start", r["first_step_seconds"],
                    r["first_step_seconds"] and r["first_step_seconds"] <= FIRST_STEP_LIMIT))
    for r in fp8:
        out.append((f"{r['model']} fp8: at least {FP8_LIMIT} times torch.compile's bf16", r["speedup"],
                    r["speedup"] and r["speedup"] >= FP8_LIMIT))
    return out


def check_verdicts(checks, check):
    """What the checks part was to show; nothing where it was not run."""
    out = [(f"{name.replace('_', ' ')}: exit code", checks[name]["exit"], checks[name]["exit"] == 0)
           for name in ("kernel_tests", "kernel_tests_memcheck", "kernel_tests_racecheck") if name in (checks or {})]
    for model, cases in check.get("gradients", {}).items():
        out += [(f"gradients of {model}, {label}: relative error at most {case['limit']}", case["worst"],
                 case["worst"] <= case["limit"]) for label, case in cases.items() if "limit" in case]
    for model, curve in check.get("curves", {}).items():
        out += [(f"loss of {model}, {label}: at most {case['limit'] * 100:.1f}% off at every 20th of 200 steps, %",
                 case["worst"] * 100, case["worst"] <= case["limit"])
                for label, case in curve["deviation"].items() if "limit" in case]
    return out


def markdown_rows(rows):
    text = ["| model | micro-batch | torch.compile | best PyTorch | ours, median (min to max) | tok/s | MFU | x compile | x best "
            "| GiB theirs, best, ours | wall | share of the wall | first step | input stall |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        text.append(
            f"| {r['model']} | {r['micro_batch']} | {number(r['pytorch_ms'])} ms | {number(r['pytorch_best_ms'])} ms "
            f"| {number(r['ours_ms'])} ms ({number(r['ours_min_ms'])} to {number(r['ours_max_ms'])}) "
            f"| {number(r['ours_tokens_per_second'], 0)} | {number(r['ours_mfu'], 3)} | {number(r['speedup'], 3)} "
            f"| {number(r['speedup_over_best'], 3)} "
            f"| {number(r['pytorch_gib'])}, {number(r['pytorch_best_gib'])}, {number(r['ours_gib'])} "
            f"| {number(r['wall_ms'])} ms | {number(r['share_of_the_wall'], 3)} | {number(r['first_step_seconds'])} s "
            f"| {number(r['input_stall_ms'], 3)} ms |")
    return text


def markdown_families(families):
    text = ["| step, without graphs, events around every operation | " + " | ".join(FAMILIES) + " | wall: gemm, attention |",
            "|---|" + "---|" * (len(FAMILIES) + 1)]
    for name, mine, wall in families:
        ms = mine.get("family_ms", {})
        text.append(f"| {name} | " + " | ".join(number(ms.get(f)) for f in FAMILIES) +
                    f" | {number(wall.get('gemm_ms'))}, {number(wall.get('attention_ms'))} |")
    return text


def markdown_checks(checks, check):
    if not checks:
        return ["The checks were not run."]
    remark = [checks["remark"], ""] if "remark" in checks else []
    text = remark + [f"- {name.replace('_', ' ')}: exit {checks[name]['exit']}, {' '.join(checks[name]['says'])}"
            for name in ("kernel_tests", "kernel_tests_memcheck", "kernel_tests_racecheck") if name in checks]
    for model, cases in check.get("gradients", {}).items():
        text.append(f"- gradients of one step against fp32 autograd, {model}, worst tensor: " + "; ".join(
            f"{label} {case['worst']:.4f}" + (f" (limit {case['limit']})" if "limit" in case else "")
            for label, case in cases.items()))
    for model, curve in check.get("curves", {}).items():
        text.append(f"- loss against PyTorch at every 20th step, {model}, worst: " + "; ".join(
            f"{label} {case['worst'] * 100:.2f}%" + (f" (limit {case['limit'] * 100:.1f}%)" if "limit" in case else "")
            for label, case in curve["deviation"].items()))
        text += ["", "| " + model + ", step | " + " | ".join(str(20 * (i + 1)) for i in range(len(
            next(iter(curve["every_20th_loss"].values()))))) + " |", "|---|" + "---|" * len(
            next(iter(curve["every_20th_loss"].values())))]
        text += [f"| {label} | " + " | ".join(f"{v:.4f}" for v in values) + " |"
                 for label, values in curve["every_20th_loss"].items()] + [""]
    return text


def write(folder, reports):
    parts = {p.stem: json.loads(p.read_text()) for p in sorted(folder.glob("*.json")) if not p.stem.startswith("trace")}
    rows, fp8, families = speed_tables(parts)
    seen = next((p["environment"] for p in parts.values() if "environment" in p), {})
    judged = (verdicts(rows, fp8) + resnet.verdicts(parts.get("resnet")) + bert.verdicts(parts.get("bert")) +
              check_verdicts(parts.get("checks"), parts.get("check", {})))
    text = ["# One GPU: our step against PyTorch", "",
            f"Measured {seen.get('date', '?')} on {seen.get('gpu', '?')} (name, driver, power limit); torch {seen.get('torch')}, "
            f"CUDA {seen.get('cuda')}, cuDNN {seen.get('cudnn')}. Made by `bench/gpu/run`; how to run it and what the columns "
            "mean: [docs/reference/gpu.md](../../docs/reference/gpu.md).", "",
            "Llamas: our side is `lockstep_gpu_step`, the step that `lockstep train` runs, on random tokens, without clipping, as the "
            "peer's. bf16, fp32 master weights and AdamW states on both sides, every side in its own process after the same 4 warm-up "
            "steps, median of 8.", "", *(p["note"] + "\n" for p in parts.values() if p.get("note")), "![speed](gpu.svg)", "",
            *markdown_rows(rows), "", "## FP8 (ours, recompute selective) against bf16 (PyTorch)", "",
            *markdown_rows(fp8), "", *resnet.markdown(parts.get("resnet")),
            *bert.markdown(parts.get("bert")), "## Where the time goes, ms", "", *markdown_families(families), "", "## Limits", "",
            "| what | measured | |", "|---|---|---|",
            *(f"| {what} | {number(value, 3)} | {'yes' if good else 'not measured' if value is None else 'NO'} |"
              for what, value, good in judged), "", "## Correctness", "",
            *markdown_checks(parts.get("checks"), parts.get("check", {}))]
    (reports / "gpu.svg").write_text(picture.draw(
        picture.entries(rows, fp8, parts), f"{seen.get('gpu', '?').split(',')[0]}, torch {seen.get('torch')}, {seen.get('date', '?')}"))
    (reports / "gpu.md").write_text("\n".join(text).rstrip() + "\n")
    (reports / "gpu.json").write_text(json.dumps(
        {"schema": "lockstep.bench.gpu/1", "environment": seen, "rows": rows, "fp8": fp8,
         "limits": [{"what": w, "measured": v, "met": bool(g)} for w, v, g in judged],
         "families": [{"row": n, "ms": m.get("family_ms", {})} for n, m, _ in families],
         "resnet": parts.get("resnet"), "bert": parts.get("bert"), "checks": parts.get("checks"), "check": parts.get("check")}, indent=1) + "\n")
    print((reports / "gpu.md").read_text())
    return 0
