"""How soon a job on cached tokens trains: from the start of the process to the end of the first step.

    PYTHON bench/start/run.py --tokens FOLDER --text FILE --tokenizer tokenizer.json [--ranks 1 2] [--rounds 5]

FOLDER holds shards that `lockstep tokenize` wrote; FILE with the tokenizer is tokenised and cached by a first run that does not
count. In turns: those shards (`kind: tokens`), the cached text (`kind: text`), and a text of 64 KiB as bytes, which is what a start
costs without data. A small GPT, one sample a step, so that the step itself is a few milliseconds. Wall time is what a user waits;
CPU seconds of all processes beside it, as a busy machine makes wall times longer.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import measure  # noqa: E402

JOB = """model: {{arch: gpt, layers: 1, hidden: 32, heads: 2, vocab: {vocab}, max_sequence: 64}}
cluster: 1x{ranks}xcpu
threads_per_rank: 1
data: {{{data}, holdout: 0}}
batch: {{micro: 1}}
optimizer: {{kind: sgd, learning_rate: 1e-3}}
checkpoint: {{every: 0, final: false}}
steps: 1
"""


def start_once(lockstep, job, environment):
    """Wall seconds to the line of the first step, wall seconds to the end, CPU seconds of all processes."""
    begin = time.monotonic()
    process = subprocess.Popen([lockstep, "train", str(job), "--json", "--report-steps"], env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = None
    for line in process.stdout:
        if first is None and '"step"' in line and "schema" not in line:
            first = time.monotonic() - begin
    error = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0 or first is None:
        sys.exit(f"{job}: exit {process.returncode}\n{error[-2000:]}")
    return first, time.monotonic() - begin, usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lockstep", default=str(measure.ROOT / "build" / "release" / "lockstep"))
    parser.add_argument("--output", default=str(measure.REPORTS / "start.json"))
    options = parser.parse_args()
    index = json.loads((pathlib.Path(options.tokens) / "index.json").read_text())
    facts = {"machine": measure.machine(), "tokens": index["tokens"], "shards": len(index["shards"]), "text_bytes": index["bytes"],
             "rows": []}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        environment = {**os.environ, "LOCKSTEP_HOME": str(folder / "home"), "LOCKSTEP_CACHE": str(folder / "cache")}
        (folder / "small.txt").write_text("to be or not to be, that is the question.\n" * 1600)
        kinds = {"shards": f"kind: tokens, path: {pathlib.Path(options.tokens).resolve()}",
                 "cached text": f"kind: text, path: {pathlib.Path(options.text).resolve()}, "
                                f"tokenizer: {pathlib.Path(options.tokenizer).resolve()}",
                 "64 KiB of bytes": f"kind: text, path: {folder / 'small.txt'}, tokenizer: bytes"}
        jobs = {}
        for ranks in options.ranks:
            for kind, data in kinds.items():
                jobs[kind, ranks] = folder / f"{kind.replace(' ', '-')}-{ranks}.yaml"
                jobs[kind, ranks].write_text(JOB.format(vocab=index["vocab_size"], ranks=ranks, data=data))
        for job in jobs.values():  # fills the cache of tokens, and the files are in memory
            start_once(options.lockstep, job, environment)
        seen = {key: [] for key in jobs}
        for _ in range(options.rounds):
            for key, job in jobs.items():
                seen[key].append(start_once(options.lockstep, job, environment))
        for (kind, ranks), rows in seen.items():
            first, whole, cpu = zip(*rows)
            facts["rows"].append({"data": kind, "ranks": ranks, "first_step_seconds": first, "whole_seconds": whole, "cpu_seconds": cpu})
            print(f"{kind}, {ranks} rank(s): first step after {statistics.median(first):.2f} s (worst {max(first):.2f}), whole "
                  f"{statistics.median(whole):.2f} s, {statistics.median(cpu):.2f} CPU s", flush=True)
    facts["load_after"] = os.getloadavg()[0]
    pathlib.Path(options.output).write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
