"""transformers' Trainer and, where it is installed, Lightning's record through lockstep.callbacks.

    trainer_callbacks.py LOCKSTEP    (with a python that has torch, transformers and accelerate)
"""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

HUGGING_FACE = """
import torch, sys, lockstep
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=64, n_positions=32))
data = [{"input_ids": (row := torch.randint(0, 64, (16,))), "labels": row} for _ in range(32)]
arguments = TrainingArguments(sys.argv[1], per_device_train_batch_size=4, max_steps=6, logging_steps=1, report_to=[],
                              save_strategy="no", use_cpu=True, disable_tqdm=True, include_num_input_tokens_seen=True)
Trainer(model, arguments, train_dataset=data, eval_dataset=data[:8],
        callbacks=[lockstep.callbacks.HuggingFaceCallback()]).train()
"""

LIGHTNING = """
import torch, sys, lockstep
import lightning.pytorch as pl
class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, index):
        loss = (self.layer(batch[0]) ** 2).mean()
        self.log("train_loss", loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(24, 4)), batch_size=4)
pl.Trainer(max_epochs=1, accelerator="cpu", logger=lockstep.callbacks.LightningLogger(), log_every_n_steps=1,
           enable_checkpointing=False, enable_progress_bar=False, default_root_dir=sys.argv[1]).fit(Model(), data)
"""


def report(lockstep, script, launched):
    with tempfile.TemporaryDirectory() as name:
        path = pathlib.Path(name) / "train.py"
        path.write_text(script)
        environment = {**os.environ, "LOCKSTEP_HOME": name + "/home", "PYTHONPATH": str(ROOT / "python" / "src"),
                       "PYTHON_EXEC": sys.executable, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        command = [lockstep, "launch", "--health", "off", path] if launched else [sys.executable, path]
        done = subprocess.run([*command, name], env=environment, capture_output=True, text=True, timeout=800)
        assert done.returncode == 0, done.stdout + done.stderr
        shown = subprocess.run([lockstep, "report", "last", "--json"], env=environment, capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr
        return json.loads(shown.stdout)


for launched in (True, False):
    found = report(sys.argv[1], HUGGING_FACE, launched)
    assert [point[0] for point in found["loss"]] == [1, 2, 3, 4, 5, 6], found["loss"]
    assert 3.5 < found["loss"][0][1] < 5.0, found["loss"]  # log(64) is 4.2
    text = json.dumps(found)
    assert '"done"' in text and "tokens" in text, text
    print("transformers", "launched" if launched else "by itself", "ok")
if importlib.util.find_spec("lightning"):
    found = report(sys.argv[1], LIGHTNING, True)
    assert len(found["loss"]) == 6, found["loss"]
    print("lightning ok")
