"""Nets that Python scripted (script_models.py), trained by `lockstep train` from a job file: the losses must be those of
the loop that a Python user would write, from the same weights and the same batches.

usage: compare_scripts.py LOCKSTEP|SCRIPT_PROBE [NET...]

With interop_script_probe instead of lockstep ranks are threads of one process, and there is no resume. Judged for every net, on 1, 2 and 4 ranks under data parallelism and ZeRO-3:
  fp32    losses of 8 steps of AdamW to 1e-6 of the loop's (batch statistics are each rank's own, as DDP's: the U-Net's
          loop computes the parts that the ranks have)
  fp64    losses to 1e-12 of the loop's, and of those of one rank that takes as many parts one after the other
  resume  after a stop in the middle: bit-identical losses and weights
  export  the state dict loads into the Python module, strictly, and holds the checkpoint's tensors; its outputs are
          those of the loop's module to 1e-5
"""

import copy
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from script_models import LOSSES, NETS

SAMPLES, GLOBAL, STEPS, RATE = 48, 8, 8, 3e-3
RANKS = (1, 2, 4)
LOCKSTEP = sys.argv[1]
PROBE = "script_probe" in Path(LOCKSTEP).name


def write_job(folder, net):
    torch.manual_seed(3)
    module, inputs, target, loss = NETS[net](SAMPLES, torch.Generator().manual_seed(7))
    torch.jit.script(module).save(str(folder / f"{net}.pt"))
    save_file({**inputs, "wanted": target}, str(folder / f"{net}.safetensors"))
    (folder / f"{net}.yaml").write_text(f"""
model: {{torchscript: {net}.pt, loss: {loss}}}
cluster: 1x1xcpu
data: {{kind: tensors, path: {net}.safetensors, inputs: [{", ".join(inputs)}], target: wanted, shuffle: false, holdout: 0}}
batch: {{micro: {GLOBAL}}}
optimizer: {{kind: adamw, learning_rate: {RATE}, weight_decay: 0.01}}
steps: {STEPS}
""")
    return module, inputs, target, loss


def lockstep(folder, *words, home="home"):
    environment = {**os.environ, "LOCKSTEP_HOME": str(folder / home)}
    done = subprocess.run([LOCKSTEP, *map(str, words)], cwd=folder, env=environment, capture_output=True, text=True,
                          timeout=600)
    assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"
    return done.stdout


def layout_of(ranks, zero):
    return f"layout={{shard: {ranks}, zero: 3}}" if zero == 3 and ranks > 1 else f"layout={{dp: {ranks}}}"


def losses_of(folder, net, ranks, zero, precision, parts=0):
    """`parts`: micro-batches of a rank, one after the other; 0: one, as a run of its own."""
    micro = GLOBAL // ranks // max(1, parts)
    words = (f"batch={{micro: {micro}, accumulation: {max(1, parts)}}}", f"precision={precision}")
    name = f"{net}-{ranks}-{zero}-{precision}" + (f"-in-{parts}" if parts else "")
    if PROBE:
        layout = f"shard={ranks},zero=3" if zero == 3 and ranks > 1 else f"dp={ranks}"
        out = lockstep(folder, f"{net}.yaml", layout, f"{name}.out", *words)
        return [float(line) for line in out.split()]
    out = lockstep(folder, "train", f"{net}.yaml", f"cluster=1x{ranks}xcpu", layout_of(ranks, zero), *words,
                   f"checkpoint={{directory: {name}}}", "--json")
    run = json.loads(out.strip().splitlines()[-1])["run"]
    report = json.loads(lockstep(folder, "report", run, "--json"))
    return [value for _, value, *_ in sorted(report["loss"])]


def loop(module, inputs, target, loss, ranks, dtype=torch.float32):
    """What a user would write; a batch in `ranks` parts, whose statistics are their own."""
    module = copy.deepcopy(module).to(dtype).train()
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    target = target.to(dtype) if target.is_floating_point() else target
    optimizer = torch.optim.AdamW(module.parameters(), lr=RATE, weight_decay=0.01)
    losses = []
    for step in range(STEPS):
        first = step * GLOBAL % SAMPLES
        optimizer.zero_grad()
        total = 0.0
        for part in range(ranks):
            rows = slice(first + part * GLOBAL // ranks, first + (part + 1) * GLOBAL // ranks)
            value = LOSSES[loss](module(*(tensor[rows] for tensor in inputs.values())), target[rows]) / ranks
            value.backward()
            total += value.item()
        optimizer.step()
        losses.append(total)
    return losses, module


def worst(ours, theirs):
    assert len(ours) == len(theirs), f"{len(ours)} losses instead of {len(theirs)}"
    return max(abs(a - b) for a, b in zip(ours, theirs))


def compare_losses(folder, net, parts):
    """{ranks: parts of a batch}: nets without batch statistics compute the same in any number of them."""
    module, inputs, target, loss = write_job(folder, net)
    for ranks in RANKS:
        theirs, _ = loop(module, inputs, target, loss, parts[ranks])
        wide, _ = loop(module, inputs, target, loss, parts[ranks], torch.float64)
        alone = losses_of(folder, net, 1, 0, "fp64", ranks)
        for zero in (0, 3):
            narrow_error = worst(losses_of(folder, net, ranks, zero, "fp32"), theirs)
            ours = losses_of(folder, net, ranks, zero, "fp64")
            wide_error, rank_error = worst(ours, wide), worst(ours, alone)
            print(f"{net:11} ranks {ranks} zero {zero}: fp32 {narrow_error:.1e} of PyTorch's loop, fp64 {wide_error:.1e}, "
                  f"of one rank's {rank_error:.1e}", flush=True)
            assert narrow_error < 1e-6 and wide_error < 1e-12 and rank_error < 1e-12


def compare_state(folder, net):
    module, inputs, target, loss = write_job(folder, net)
    _, trained = loop(module, inputs, target, loss, 1)
    file = folder / f"{net}-1-0-fp32.out"
    if not PROBE:
        lockstep(folder, "checkpoint", "export", f"{net}-1-0-fp32", "--output", f"{net}-state")
        file = folder / f"{net}-state" / "model.safetensors"
    state = load_file(str(file))
    fresh = copy.deepcopy(module)
    fresh.load_state_dict(state, strict=True)
    for name, tensor in fresh.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    some = [tensor[:4] for tensor in inputs.values()]
    error = (fresh.eval()(*some) - trained.eval()(*some)).abs().max().item()
    print(f"{net:11} export: {len(state)} tensors, outputs {error:.1e} of the loop's module")
    assert error < 1e-5


def compare_resume(folder, net):
    write_job(folder, net)
    words = ("train", f"{net}.yaml", "cluster=1x2xcpu", layout_of(2, 3), f"batch.micro={GLOBAL // 2}", "--json")
    straight = json.loads(lockstep(folder, *words, f"checkpoint={{directory: {net}-straight}}").splitlines()[-1])
    lockstep(folder, *words, f"checkpoint={{directory: {net}-stopped}}", f"steps={STEPS // 2}")
    resumed = json.loads(lockstep(folder, *words, f"checkpoint={{directory: {net}-stopped}}", "--resume").splitlines()[-1])
    assert straight["final_loss"] == resumed["final_loss"], (straight, resumed)
    for name in ("straight", "stopped"):
        lockstep(folder, "checkpoint", "export", f"{net}-{name}", "--output", f"{net}-{name}-state")
    one, other = (load_file(str(folder / f"{net}-{name}-state" / "model.safetensors")) for name in ("straight", "stopped"))
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    print(f"{net:11} resume: {len(one)} tensors bit-identical, final loss {resumed['final_loss']!r}")


def main():
    torch.set_num_threads(1)
    # The U-Net has batch norm, whose statistics are of a rank's own samples.
    parts = {"unet": {1: 1, 2: 2, 4: 4}}
    for net in sys.argv[2:] or NETS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            compare_losses(folder, net, parts.get(net, {1: 1, 2: 1, 4: 1}))
            compare_state(folder, net)
            if not PROBE:
                compare_resume(folder, net)


main()
