"""One rank of the PyTorch side: a byte-level GPT trained with DistributedDataParallel over Gloo.

Written as a careful PyTorch user would: fused attention, gradients as views of the buckets, fused AdamW, no
synchronisation beside DDP's, gradients freed instead of zeroed. Started by run.py, one process per rank, with RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. Prints one JSON line on rank 0.
"""
import argparse
import json
import math
import os
import pathlib
import resource
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.projection = nn.Linear(hidden, hidden)
        self.norm_2 = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x):  # [batch, seq, hidden]
        batch, seq, hidden = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, seq, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, seq, hidden))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, layers, hidden, heads, vocab, positions):
        super().__init__()
        self.tokens = nn.Embedding(vocab, hidden)
        self.positions = nn.Embedding(positions, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocab, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                scaled = name.endswith(("projection.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if scaled else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens, targets):  # int64 [batch, seq] both
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def read_bytes(folder):
    """The text of a folder as Lockstep's text reader takes it: the regular files, by name, as bytes."""
    files = sorted(path for path in pathlib.Path(folder).iterdir() if path.is_file() and not path.is_symlink())
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files)), dtype=torch.uint8)


def learning_rate(step, steps, peak, warmup):
    if step < warmup:
        return peak * (step + 1) / warmup
    return 0.5 * peak * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


def main():
    parser = argparse.ArgumentParser()
    for name, default in {"layers": 6, "hidden": 384, "heads": 6, "vocab": 256, "seq": 256, "micro": 4,
                          "steps": 40, "threads": 1, "bucket-mib": 25, "lr-warmup": 20}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--data", default="/usr/share/common-licenses")
    parser.add_argument("--fused", type=int, default=1, help="AdamW(fused=True)")
    parser.add_argument("--compile", type=int, default=0)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = Gpt(args.layers, args.hidden, args.heads, args.vocab, args.seq)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=args.bucket_mib)
    step_function = torch.compile(ddp) if args.compile else ddp
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1,
                                  fused=bool(args.fused))
    text = read_bytes(args.data)
    text = text[: int(0.95 * len(text))]
    samples = (len(text) - 1) // args.seq
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(1)).tolist()

    seconds, losses = [], []
    for step in range(args.steps):
        begin = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr, args.lr_warmup)
        first = (step * world + rank) * args.micro
        rows = [order[(first + i) % samples] * args.seq for i in range(args.micro)]
        chunk = torch.stack([text[row : row + args.seq + 1] for row in rows]).long()
        loss = step_function(chunk[:, :-1].contiguous(), chunk[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)
    mean_loss = torch.tensor([losses[-1]])
    dist.all_reduce(mean_loss)
    peak = torch.tensor([float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024])
    dist.all_reduce(peak, op=dist.ReduceOp.MAX)
    if rank == 0:
        timed = seconds[min(10, args.steps // 10) :]  # as many as Lockstep leaves out of its own figure
        tokens = args.micro * args.seq * world
        print(json.dumps({"torch": torch.__version__, "parameters": parameters, "steps": args.steps,
                          "tokens_per_second": tokens * len(timed) / sum(timed), "first_loss": losses[0],
                          "final_loss": mean_loss.item() / world, "peak_memory_bytes": peak.item()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
