"""A training script as people write them for torchrun: DDP on Gloo, a checkpoint every few steps, go on from the last.

It knows nothing of Lockstep. Under FOLDER it leaves one line per step (step, loss, time, process) and the process of
every rank, for whoever measures.
"""
import argparse
import os
import pathlib
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--save-every", type=int, default=5)
parser.add_argument("--step-seconds", type=float, default=0.05, help="a step takes at least so long")
arguments = parser.parse_args()

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
(arguments.folder / f"rank-{rank}.pid").write_text(str(os.getpid()))

torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
checkpoint = arguments.folder / "checkpoint.pt"
begin = 0
if checkpoint.exists():
    state = torch.load(checkpoint, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    begin = state["step"]

for step in range(begin + 1, arguments.steps + 1):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(32, 64, generator=generator)
    loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    time.sleep(arguments.step_seconds)
    if rank == 0:
        with open(arguments.folder / "steps.txt", "a") as file:
            file.write(f"{step} {total.item() / world:.17g} {time.time():.6f} {os.getpid()}\n")
        if step % arguments.save_every == 0:
            part = checkpoint.with_suffix(".part")
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, part)
            part.replace(checkpoint)
dist.destroy_process_group()
