"""One rank of a data-parallel GPT under torchrun, as most training scripts are: a checkpoint every N steps, loaded after a restart.

Every rank appends `time step restarts rank pid` to the file of --steps-file after each optimizer step.
"""
import argparse
import os
import pathlib
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "ddp_vs_pytorch"))
from pytorch_ddp import Gpt, read_bytes  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser()
    for name in ("layers", "hidden", "heads", "vocab", "positions", "seq", "micro"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps-file", required=True)
    parser.add_argument("--checkpoint", type=pathlib.Path)
    parser.add_argument("--every", type=int, default=0, help="steps between checkpoints")
    return parser.parse_args()


def make_model(args):
    torch.set_num_threads(1)
    torch.manual_seed(1)
    return Gpt(args.layers, args.hidden, args.heads, args.vocab, args.positions)


def make_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)


class Samples:
    """Windows of the text in a seeded order, the same for every stack."""

    def __init__(self, args):
        self.args = args
        self.text = read_bytes(args.data)
        self.count = (len(self.text) - 1) // args.seq
        self.order = torch.randperm(self.count, generator=torch.Generator().manual_seed(1)).tolist()

    def batch(self, step, rank, world):
        first = (step * world + rank) * self.args.micro
        rows = [self.order[(first + i) % self.count] * self.args.seq for i in range(self.args.micro)]
        chunk = torch.stack([self.text[row : row + self.args.seq + 1] for row in rows]).long()
        return chunk[:, :-1].contiguous(), chunk[:, 1:].contiguous()


class StepsFile:
    def __init__(self, path):
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, step, generation, rank):
        os.write(self.file, f"{time.time():.6f} {step} {generation} {rank} {os.getpid()}\n".encode())


def save(path, step, model, optimizer):
    part = path.with_suffix(".part")
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, part)
    part.replace(path)


def main():
    args = arguments()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = make_model(args)
    optimizer = make_optimizer(model.parameters())
    step = 0
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    samples, steps = Samples(args), StepsFile(args.steps_file)
    while True:
        ddp(*samples.batch(step, rank, world)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        steps.add(step, os.environ["TORCHELASTIC_RESTART_COUNT"], rank)
        if rank == 0 and step % args.every == 0:
            save(args.checkpoint, step, model, optimizer)


if __name__ == "__main__":
    main()
