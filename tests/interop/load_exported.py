"""Loads a folder with transformers and holds its logits against those that were written down.

usage: load_exported.py FOLDER EXPECTED.safetensors [TOLERANCE]

The class is the one that config.json names; a tensor that is missing or that the class does not know is a failure.
EXPECTED holds logits and the inputs they belong to (make_models.py). TOLERANCE is relative to the largest logit;
without it the logits must be identical.
"""

import sys

import torch
import transformers
from make_models import logits_of
from safetensors.torch import load_file


def load(folder):
    """The model and what is wrong with its files, as a list of sentences."""
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, config.architectures[0])
    model, info = kind.from_pretrained(folder, output_loading_info=True)
    problems = [f"{key}: {sorted(map(str, names))[:4]}" for key, names in info.items() if names]
    return model, problems


def difference(folder, expected):
    """max|loaded - expected| / max|expected| of the logits, and what is wrong with the files."""
    model, problems = load(folder)
    logits = logits_of(model, expected)
    if logits.shape != expected["logits"].shape or logits.dtype != expected["logits"].dtype:
        return float("inf"), [*problems, f"logits are {logits.dtype} {tuple(logits.shape)}"]
    error = (logits - expected["logits"]).abs().max() / expected["logits"].abs().max()
    return error.item(), problems


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    tolerance = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
    error, problems = difference(sys.argv[1], load_file(sys.argv[2]))
    print(f"logits differ by {error:.2e}", *problems, sep="\n")
    sys.exit(0 if error <= tolerance and not problems else 1)  # NaN fails


if __name__ == "__main__":
    main()
