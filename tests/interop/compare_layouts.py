"""Models of transformers, imported from its safetensors, under distributed layouts: they must compute what it computes.

usage: compare_layouts.py LAYOUT_PROBE [CASE...]

Each case is read by interop_layout_probe in each of its layouts, its ranks as threads. Judged, in fp32:
  logits, loss, gradients, weights after one AdamW step   to 1e-4
  what that step added to the weights                     to 2e-3 (the weights themselves would hide a missing decay)
  the folder exported untouched                           tensors equal byte for byte, the same settings, and in
                                                          transformers logits identical to those of the original
  the folder exported after the step                      in transformers logits identical to those of the same weights
                                                          under its own config.json, and ours to 1e-4
Errors are max|ours - theirs| / max|theirs| of a tensor. Some gradients (of a key's bias) are zero but for round-off: a
gradient is divided by at least a thousandth of the largest of all tensors, an update by the largest itself, since what
it adds is rounded to the last digit of its weight.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import make_models
import torch
import transformers
from compare_folders import other_settings
from load_exported import load
from make_models import SEQ, bert, causal, classified, gpt2, llama, logits_of, make, mamba, masked, mixtral
from safetensors.torch import load_file

BOUND, UPDATE_BOUND = 1e-4, 2e-3
BOUNDS = {"update": UPDATE_BOUND}  # by column; the others have BOUND
STEPS = 1
COLUMNS = ("logits", "loss", "gradients", "weights", "update", "trained logits")


def masked_with_padding(generator):
    batch = masked(generator)
    mask = torch.arange(SEQ) < torch.tensor([[SEQ], [7], [11], [SEQ - 1]])
    return {"input_ids": batch["input_ids"].where(mask, torch.tensor(0)), "attention_mask": mask.long()} | {
        key: batch[key].where(mask, torch.tensor(-100)) for key in ("labels", "targets")
    }


def classified_of_one_type(generator):
    """Our BERT has sentences of one type only."""
    batch = classified(generator)
    batch["token_type_ids"] = torch.zeros_like(batch["token_type_ids"])
    return batch


EPSILON, ROPE = 1e-3, {"rope_type": "default", "rope_theta": 300.0}
# make, batch, max_shard_size, as in make_models; settings away from the defaults, which a config.json may leave out.
# transformers adds the experts' balancing loss only when told to; with one layer its formula is ours.
CASES = {
    "gpt2": (lambda: gpt2(layer_norm_epsilon=EPSILON), causal, None),
    "gpt2-untied": (
        lambda: gpt2(tie_word_embeddings=False, n_inner=56, activation_function="gelu"), causal, "20KB"),
    "llama": (lambda: llama(rms_norm_eps=EPSILON, rope_parameters=ROPE), causal, None),
    "llama3-rope": (
        lambda: llama(rope_parameters=make_models.LLAMA3_ROPE, head_dim=12, tie_word_embeddings=True), causal, "20KB"),
    "bert-mlm": (lambda: bert("BertForMaskedLM", layer_norm_eps=EPSILON), masked_with_padding, None),
    "bert-classifier": (
        lambda: bert("BertForSequenceClassification", num_labels=make_models.CLASSES, hidden_act="gelu_new"),
        classified_of_one_type, None),
    "mixtral": (lambda: mixtral(rms_norm_eps=EPSILON, rope_parameters=ROPE), causal, "20KB"),
    "mixtral-balance": (
        lambda: mixtral(output_router_logits=True, router_aux_loss_coef=0.5, num_hidden_layers=1), causal, None),
    "mamba": (lambda: mamba(layer_norm_epsilon=EPSILON), causal, None),
}

# layout, micro-steps that the batch of four samples is accumulated over
EVERYWHERE = [
    ("dp=1", 1),
    ("tp=2", 1),
    ("tp=2,sequence_parallel=true", 1),
    ("pp=2", 1),
    ("pp=2", 2),
    ("shard=2,zero=3", 1),
    ("pp=2,shard=2,tp=2,zero=3,sequence_parallel=true", 2),
]
LAYOUTS = {
    "gpt2": [*EVERYWHERE, ("dp=2", 2), ("cp=2,context_exchange=all_to_all", 1), ("pp=2,schedule=zero_bubble", 4)],
    "gpt2-untied": [EVERYWHERE[-1]],
    "llama": [*EVERYWHERE, ("tp=4,sequence_parallel=true", 1), ("shard=2,cp=2,zero=2", 2)],
    "llama3-rope": [EVERYWHERE[-1], ("cp=2,tp=2", 1)],
    "bert-mlm": [*EVERYWHERE, ("cp=2", 1)],
    "bert-classifier": EVERYWHERE,
    "mixtral": [*EVERYWHERE, ("dp=2,ep=2", 1), ("shard=2,tp=2,ep=2,zero=3", 2)],
    "mixtral-balance": [
        ("dp=1", 1), ("tp=2,sequence_parallel=true", 1), ("shard=2,zero=3", 1), ("dp=2,cp=2,tp=2,ep=4", 1)],
    "mamba": [*EVERYWHERE, ("cp=2", 1)],
}


def weights_of(folder):
    """Every tensor of a folder, whatever files it is in."""
    weights = {}
    for file in sorted(folder.glob("*.safetensors")):
        weights |= load_file(file)
    return weights


def error(ours, theirs, floor=0.0):
    if ours.shape != theirs.shape:
        return float("inf")
    ours, theirs = ours.double(), theirs.double()
    return ((ours - theirs).abs().max() / max(theirs.abs().max().item(), floor, 1e-30)).item()


def worst_error(ours, theirs, share=0.0):
    """Over the tensors of two maps; nothing is divided by less than that share of the largest element of all."""
    if set(ours) != set(theirs):
        raise ValueError(f"other tensors: {sorted(set(ours) ^ set(theirs))[:6]}")
    floor = share * max(tensor.abs().max().item() for tensor in theirs.values())
    errors = [error(ours[name], theirs[name], floor) for name in theirs]
    return max(errors, key=lambda value: float("inf") if value != value else value)  # NaN is the worst


def differences(ours, theirs):
    return {name: ours[name].double() - theirs[name].double() for name in theirs}


def same_bytes(ours, theirs):
    def stored(tensor):
        return tensor.contiguous().view(torch.uint8)

    return set(ours) == set(theirs) and all(
        ours[name].dtype == theirs[name].dtype
        and ours[name].shape == theirs[name].shape
        and torch.equal(stored(ours[name]), stored(theirs[name]))
        for name in theirs
    )


class Reference:
    """What transformers computed for a case (make_models.py)."""

    def __init__(self, case, folder):
        make(case, folder, CASES, STEPS)
        self.folder, self.model = folder, folder / "model"
        self.expected = load_file(folder / "expected.safetensors")
        self.weights = weights_of(self.model)
        self.gradients = weights_of(folder / "gradients")
        self.updated = weights_of(folder / "updated")

    def errors(self, out):
        """By column, and the logits after the step."""
        result = load_file(out / "result.safetensors")
        prefix = "gradient."
        gradients = {name.removeprefix(prefix): value for name, value in result.items() if name.startswith(prefix)}
        trained = weights_of(out / "trained")
        update, their_update = differences(trained, self.weights), differences(self.updated, self.weights)
        theirs = load(self.folder / "updated")[0]
        return dict(zip(COLUMNS, (
            error(result["logits"], self.expected["logits"]),
            error(result["loss"], self.expected["loss"]),
            worst_error(gradients, self.gradients, share=1e-3),
            worst_error(trained, self.updated),
            worst_error(update, their_update, share=1.0),
            error(result["trained_logits"], logits_of(theirs, self.expected)),
        ), strict=True)), result["trained_logits"]

    def untouched_problems(self, folder):
        model, problems = load(folder)
        if not same_bytes(weights_of(folder), self.weights):
            problems.append("tensors differ from those that were read")
        if not torch.equal(logits_of(model, self.expected), self.expected["logits"]):
            problems.append("logits are not identical")
        configs = (transformers.AutoConfig.from_pretrained(where) for where in (self.model, folder))
        return problems + [f"config.json: `{key}` differs" for key in other_settings(*configs)]

    def trained_problems(self, folder, our_logits):
        """Our weights under our config.json and, in a copy, under the one that transformers wrote."""
        copy = folder.with_name("trained-under-their-config")
        shutil.copytree(folder, copy)
        shutil.copy(self.model / "config.json", copy / "config.json")
        (model, problems), (same, others) = load(folder), load(copy)
        logits = logits_of(model, self.expected)
        problems += others
        if not torch.equal(logits, logits_of(same, self.expected)):
            problems.append("logits are not those of the same weights")
        if not error(our_logits, logits) <= BOUND:
            problems.append(f"our logits differ by {error(our_logits, logits):.1e}")
        return problems


def run(probe, reference, layout, accumulation, out):
    """The errors by column and the failures of one layout."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [probe, reference.folder, layout, str(accumulation), out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    if done.returncode != 0:
        return {}, [f"probe ended with {done.returncode}: {done.stderr.strip()}"]
    try:
        errors, trained_logits = reference.errors(out)
    except ValueError as mismatch:
        return {}, [str(mismatch)]
    failures = []
    for column, value in errors.items():
        bound = BOUNDS.get(column, BOUND)
        if not value <= bound:  # NaN fails
            failures.append(f"{column} differ by {value:.2e} > {bound:.0e}")
    failures += [f"imported: {problem}" for problem in reference.untouched_problems(out / "imported")]
    failures += [f"trained: {problem}" for problem in reference.trained_problems(out / "trained", trained_logits)]
    return errors, failures


def compare(probe, cases, root):
    print(f"{'model':<16} {'layout':<48} {'micro-steps':<12}" + "".join(f"{name:>15}" for name in COLUMNS))
    failures, worst = [], dict.fromkeys(COLUMNS, 0.0)
    for case in cases:
        reference = Reference(case, root / case)
        for number, (layout, accumulation) in enumerate(LAYOUTS[case]):
            errors, found = run(probe, reference, layout, accumulation, root / case / f"layout-{number}")
            figures = "".join(f"{errors.get(name, float('nan')):>15.1e}" for name in COLUMNS)
            print(f"{case:<16} {layout:<48} {accumulation:<12}{figures}{'  FAIL' if found else ''}", flush=True)
            failures += [f"{case} {layout} in {accumulation}: {failure}" for failure in found]
            worst = {name: max(value, errors.get(name, 0.0)) for name, value in worst.items()}
    print(f"{'worst':<78}" + "".join(f"{value:>15.1e}" for value in worst.values()))
    return failures


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="lockstep-interop-") as root:
        failures = compare(sys.argv[1], sys.argv[2:] or CASES, Path(root))
    print(*(f"FAIL {failure}" for failure in failures), sep="\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
