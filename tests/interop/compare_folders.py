"""Folders that we write, loaded by transformers: config.json, safetensors and shards, with identical logits.

usage: compare_folders.py COPY_FOLDER

Every model of make_models.py is read and written again by interop_copy_folder, as one file and in shards.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from load_exported import difference
from make_models import CASES, make
from safetensors.torch import load_file

ONE_FILE, SHARDS = 5_000_000_000, 9_000


def other_settings(theirs, ours):
    """Fields of the two config.json, as transformers reads them, that differ and that change what is computed."""
    passing = {"_name_or_path", "transformers_version", "bos_token_id", "eos_token_id", "use_cache", "problem_type"}
    passing.add("pad_token_id")  # of the tokenizer, as the other two
    passing.add("head_dim")  # written out where theirs leaves it to be divided
    theirs, ours = theirs.to_dict(), ours.to_dict()
    if not theirs.get("output_router_logits"):
        passing.add("router_aux_loss_coef")  # counts only with that
    return [key for key in theirs if key not in passing and theirs[key] != ours.get(key)]


def check(copy_folder, case, root):
    make(case, root / case)
    model = root / case / "model"
    expected = load_file(root / case / "expected.safetensors")
    failures = []
    for label, limit in (("one file", ONE_FILE), ("shards", SHARDS)):
        copy = root / case / label.replace(" ", "-")
        done = subprocess.run([copy_folder, model, copy, str(limit)], capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            return [f"{case}: {done.stderr.strip()}"]
        shards = len(list(copy.glob("*.safetensors")))
        if (shards > 1) != (limit == SHARDS):
            failures.append(f"{case}: {shards} files of weights with a limit of {limit} bytes")
        if case == "bert-encoder":  # ours always has a head; the encoder of it is the model
            name_the_encoder(copy)
        error, problems = difference(copy, expected)
        settings = other_settings(*(transformers.AutoConfig.from_pretrained(folder) for folder in (model, copy)))
        problems += [f"config.json: `{key}` differs" for key in settings]
        print(f"{case:<20} {label:<9} files {shards}  logits differ by {error:.1e}", flush=True)
        failures += [f"{case} {label}: {problem}" for problem in problems]
        if error != 0:
            failures.append(f"{case} {label}: logits differ by {error:.2e}")
    return failures


def name_the_encoder(folder):
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["BertModel"]
    (folder / "config.json").write_text(json.dumps(config))


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    failures = []
    with tempfile.TemporaryDirectory(prefix="lockstep-interop-") as root:
        for case in CASES:
            failures += check(sys.argv[1], case, Path(root))
    print(*(f"FAIL {failure}" for failure in failures), sep="\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
