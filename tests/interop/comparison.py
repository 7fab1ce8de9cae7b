"""Runs interop_probe on a model's weights and batches, and holds its numbers against PyTorch's.

The error of a tensor is max|ours - theirs| / max|theirs|: relative to the tensor's own scale, so that an entry which
cancels to almost nothing (and is all round-off on both sides) does not count as wrong, while one wrong entry of
normal size cannot hide in a norm over thousands of right ones.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

LEARNING_RATE = 1e-3
torch.set_num_threads(1)


@dataclass
class Bound:
    first_batch: float  # loss, logits, buffers
    gradients: float
    training: float  # every loss over the AdamW steps


# fp64 leaves no room for a wrong formula; fp32 is what is promised to users.
BOUNDS = {"fp64": Bound(1e-9, 1e-9, 1e-7), "fp32": Bound(1e-5, 1e-5, 1e-4)}
# transformers' Llama norms and rotates in fp32 even where the model is fp64, ours does not.
LLAMA_BOUNDS = {"fp64": Bound(2e-6, 2e-6, 1e-5), "fp32": BOUNDS["fp32"]}
# Batch norm over eight samples divides by small variances, and a ReLU or a max-pool near a tie goes the other way for the
# last bit: in fp32 that round-off is printed, not judged. fp64 judges these formulas, at 1e-9.
BATCH_NORM_BOUNDS = {"fp64": BOUNDS["fp64"], "fp32": Bound(1e-5, math.inf, math.inf)}
DTYPES = {"fp64": torch.float64, "fp32": torch.float32}


def error(ours, theirs, least_scale=0.0):
    ours, theirs = ours.double(), theirs.detach().double()
    if ours.shape != theirs.shape:
        raise SystemExit(f"shape {tuple(ours.shape)} instead of {tuple(theirs.shape)}")
    scale = max(theirs.abs().max().item(), least_scale)
    difference = (ours - theirs).abs().max().item()
    return difference / scale if scale > 0 else difference


def run_probe(probe, precision, write_model, state, inputs, targets, padding_id=-1):
    """write_model(folder) writes the model's description and returns its name in the folder."""
    with tempfile.TemporaryDirectory(prefix="lockstep-interop-") as name:
        folder = Path(name)
        settings = {"model": write_model(folder), "dtype": precision, "learning_rate": LEARNING_RATE}
        settings["padding_id"] = padding_id
        (folder / "settings.json").write_text(json.dumps(settings))
        save_file({k: v.detach().contiguous().clone() for k, v in state.items()}, folder / "model.safetensors")
        save_file({"inputs": inputs.contiguous(), "targets": targets.contiguous()}, folder / "batches.safetensors")
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # tiny models, busy machines
        done = subprocess.run([probe, str(folder)], capture_output=True, text=True, timeout=600, env=environment)
        if done.returncode != 0:
            raise SystemExit(f"interop_probe failed ({done.returncode}): {done.stderr.strip()}")
        return load_file(folder / "result.safetensors")


def reference(model, forward, inputs, targets):
    """The same experiment by PyTorch; forward(model, input) gives logits [..., classes]."""

    def loss_of(step):
        logits = forward(model, inputs[step])
        flat = logits.reshape(-1, logits.shape[-1])
        return logits, torch.nn.functional.cross_entropy(flat, targets[step].reshape(-1), ignore_index=-100)

    out = {}
    start = {name: value.detach().clone() for name, value in model.state_dict().items()}
    model.train()
    out["logits"], out["loss"] = loss_of(0)
    out["loss"].backward()
    for name, parameter in model.named_parameters():
        out["gradient." + name] = parameter.grad.clone()
    for name, buffer in model.named_buffers():
        out["state." + name] = buffer.detach().clone()
    model.load_state_dict(start)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for step in range(len(inputs)):
        optimizer.zero_grad()
        _, loss = loss_of(step)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    out["losses"] = torch.stack(losses)
    return out


class Report:
    def __init__(self):
        self.failures = []
        self.worst = {}

    def compare(self, case, precision, ours, theirs, bounds=BOUNDS):
        names = set(theirs)
        if names != set(ours):
            raise SystemExit(f"{case}: other tensors: {sorted(names ^ set(ours))[:6]}")
        # All scores of a query get the same from a key's bias, which softmax does not see: its gradient is round-off.
        gradients = [theirs[name].abs().max().item() for name in names if name.startswith("gradient.")]
        least = {name: max(gradients) for name in names if name.endswith(".key.bias")}
        errors = {name: error(ours[name], theirs[name], least.get(name, 0.0)) for name in names}
        kinds = {"loss": ["loss"], "logits": ["logits"], "losses": ["losses"]}
        kinds["gradients"] = [n for n in names if n.startswith("gradient.")]
        kinds["buffers"] = [n for n in names if n.startswith("state.")]
        line = []
        for kind, members in kinds.items():
            if not members:
                continue
            bound = {"losses": bounds[precision].training, "gradients": bounds[precision].gradients}.get(
                kind, bounds[precision].first_batch
            )
            worst = max(members, key=lambda n: errors[n])
            line.append(f"{kind} {errors[worst]:.1e}")
            key = (precision, kind)
            self.worst[key] = max(self.worst.get(key, 0.0), errors[worst])
            if not errors[worst] <= bound:  # also catches NaN
                self.failures.append(f"{case} {precision}: {worst} differs by {errors[worst]:.2e} > {bound:.0e}")
        print(f"{case:<34} {precision}  " + "  ".join(line), flush=True)

    def finish(self):
        for (precision, kind), value in sorted(self.worst.items()):
            print(f"worst {precision} {kind:<10} {value:.2e}")
        for failure in self.failures:
            print("FAIL", failure)
        sys.exit(1 if self.failures else 0)
