"""LoRA adapters in PEFT's format: read, trained under layouts and written, against PEFT.

usage: compare_peft.py LAYOUT_PROBE

PEFT puts an adapter with random matrices on a tiny model and saves it. We read it, compute its logits (to 1e-5), write it
again (bytes equal), train it for five steps of AdamW (logits to 1e-4 of PEFT's own training), and PEFT loads what we wrote
after that: its logits must be ours to 1e-5.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import peft
import torch
import transformers
from compare_families import LAYOUTS, family, neox
from compare_layouts import error
from make_models import STEP, causal, gpt2, llama, logits_of, model_inputs
from safetensors.torch import load_file, save_file

STEPS, RANK, ALPHA = 5, 4, 6
# make, targets as our model files name them, and as PEFT does
MODELS = {
    "llama": (llama, ["q_proj", "v_proj", "down_proj"], ["q_proj", "v_proj", "down_proj"]),
    "qwen2": (lambda: family("Qwen2ForCausalLM"), ["k_proj", "o_proj", "gate_proj"], ["k_proj", "o_proj", "gate_proj"]),
    "gpt2": (gpt2, ["c_attn", "c_proj"], ["c_attn", "c_proj"]),
    "neox": (neox, ["o_proj", "up_proj"], ["attention.dense", "mlp.dense_h_to_4h"]),
}


def prepare(name, folder):
    """The case as interop_layout_probe reads it, PEFT's logits, and those after its training."""
    make, ours, theirs = MODELS[name]
    torch.manual_seed(len(name))
    make().save_pretrained(folder / "model")
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    settings = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=theirs, task_type="CAUSAL_LM",
                               fan_in_fan_out=name == "gpt2")
    model = peft.get_peft_model(base, settings)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "lora_B" in parameter_name:
                parameter.normal_(std=0.1)
    model.save_pretrained(folder / "adapter")
    batch = causal(torch.Generator().manual_seed(1))
    save_file({key: value.contiguous() for key, value in batch.items()}, folder / "expected.safetensors")
    lora = {"rank": RANK, "alpha": ALPHA, "targets": ours}
    (folder / "settings.json").write_text(json.dumps(STEP | {"padding_id": -1, "steps": STEPS, "lora": lora}))
    before = logits_of(model, batch)
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=STEP["learning_rate"],
                                  betas=STEP["betas"], eps=STEP["epsilon"], weight_decay=STEP["weight_decay"])
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(**model_inputs(batch), labels=batch["labels"]).loss.backward()
        optimizer.step()
    return batch, before, logits_of(model, batch)


def same_tensors(ours, theirs):
    ours, theirs = (load_file(folder / "adapter_model.safetensors") for folder in (ours, theirs))
    return set(ours) == set(theirs) and all(torch.equal(ours[name], theirs[name]) for name in theirs)


def check(probe, name, root):
    folder = root / name
    batch, before, after = prepare(name, folder)
    failures = []
    for number, (layout, accumulation) in enumerate(LAYOUTS):
        out = folder / f"layout-{number}"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [probe, folder, layout, str(accumulation), out]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        if done.returncode != 0:
            failures.append(f"{name} {layout}: probe ended with {done.returncode}: {done.stderr.strip()}")
            continue
        result = load_file(out / "result.safetensors")
        base = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
        reloaded = logits_of(peft.PeftModel.from_pretrained(base, out / "trained-adapter"), batch)
        figures = {"logits": (error(result["logits"], before), 1e-5),
                   "trained logits": (error(result["trained_logits"], after), 1e-4),
                   "reloaded by PEFT": (error(result["trained_logits"], reloaded), 1e-5)}
        print(f"{name:<8} {layout:<16}" + "".join(f"  {key} {value:.1e}" for key, (value, _) in figures.items()),
              flush=True)
        failures += [f"{name} {layout}: {key} differ by {value:.1e} > {bound:.0e}"
                     for key, (value, bound) in figures.items() if not value <= bound]
        if not same_tensors(out / "imported-adapter", folder / "adapter"):
            failures.append(f"{name} {layout}: the adapter that was read is not the one that was written")
    return failures


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    failures = []
    with tempfile.TemporaryDirectory(prefix="lockstep-interop-") as root:
        for name in MODELS:
            failures += check(sys.argv[1], name, Path(root))
    print(*(f"FAIL {failure}" for failure in failures), sep="\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
