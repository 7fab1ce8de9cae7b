"""A plain PyTorch DistributedDataParallel script over Gloo, with its throughput knobs as flags.

A byte-level GPT trains on text files; every optimizer step prints one line, `tokens_per_second: 12345.6`. Start it by
itself (it starts its ranks) or under torchrun. Nothing here knows about Lockstep.
"""

import argparse
import contextlib
import os
import pathlib
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="/usr/share/common-licenses", help="folder of text files")
    parser.add_argument("--ranks", type=int, default=2, help="processes, when not started by torchrun")
    parser.add_argument("--steps", type=int, default=30, help="optimizer steps")
    parser.add_argument("--global-batch", type=int, default=16, help="sequences per optimizer step over all ranks")
    parser.add_argument("--micro-batch", type=int, default=2, help="sequences per rank and backward pass")
    parser.add_argument("--bucket-cap-mb", type=float, default=25.0, help="DDP's gradient bucket")
    parser.add_argument("--num-workers", type=int, default=0, help="loader processes per rank")
    parser.add_argument("--prefetch-factor", type=int, default=None, help="batches ready per loader process")
    parser.add_argument("--bucket-view", type=int, choices=(0, 1), default=0, help="gradients are views of the buckets")
    parser.add_argument("--static-graph", type=int, choices=(0, 1), default=0, help="DDP's static_graph")
    parser.add_argument("--fused-adam", type=int, choices=(0, 1), default=0, help="AdamW as one kernel")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=192)
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--sequence", type=int, default=128)
    return parser.parse_args()


class Bytes(Dataset):
    """Windows of `sequence` bytes and the bytes that follow them."""

    def __init__(self, folder: str, sequence: int):
        files = sorted({path.resolve() for path in pathlib.Path(folder).iterdir() if path.is_file()})
        self.text = torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files)), dtype=torch.uint8)
        self.sequence = sequence

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.sequence

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        window = self.text[index * self.sequence : (index + 1) * self.sequence + 1].long()
        return window[:-1], window[1:]


class Block(nn.Module):
    def __init__(self, hidden: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [batch, sequence, hidden]
        batch, sequence, hidden = x.shape
        q, k, v = (
            part.view(batch, sequence, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, sequence, hidden))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, layers: int, hidden: int, heads: int, sequence: int):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(256, hidden), nn.Embedding(sequence, hidden)
        self.blocks = nn.Sequential(*(Block(hidden, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, 256, bias=False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        logits = self.head(self.norm(self.blocks(x)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def endless(loader: DataLoader, sampler: DistributedSampler):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def train(rank: int, world: int, arguments: argparse.Namespace) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=world)
    torch.manual_seed(1)
    per_pass = world * arguments.micro_batch
    if arguments.global_batch % per_pass != 0:
        raise SystemExit(f"--global-batch {arguments.global_batch} is not divisible by {world} ranks x --micro-batch")
    accumulation = arguments.global_batch // per_pass
    model = DistributedDataParallel(
        Gpt(arguments.layers, arguments.hidden, arguments.heads, arguments.sequence),
        bucket_cap_mb=arguments.bucket_cap_mb,
        gradient_as_bucket_view=bool(arguments.bucket_view),
        static_graph=bool(arguments.static_graph),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=bool(arguments.fused_adam))
    dataset = Bytes(arguments.data, arguments.sequence)
    sampler = DistributedSampler(dataset, world, rank, seed=1)
    loader = DataLoader(
        dataset,
        arguments.micro_batch,
        sampler=sampler,
        num_workers=arguments.num_workers,
        prefetch_factor=arguments.prefetch_factor if arguments.num_workers > 0 else None,
        persistent_workers=arguments.num_workers > 0,
        drop_last=True,
    )
    batches = endless(loader, sampler)
    tokens = arguments.global_batch * arguments.sequence
    before = time.perf_counter()
    for step in range(arguments.steps):
        for micro in range(accumulation):
            ids, targets = next(batches)
            last = micro == accumulation - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = model(ids, targets) / accumulation
                loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=not arguments.bucket_view)
        now = time.perf_counter()
        if rank == 0:
            print(f"step {step + 1} loss {loss.item() * accumulation:.4f}", end=" ")
            print(f"tokens_per_second: {tokens / (now - before):.1f}", flush=True)
        before = now
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main() -> None:
    arguments = parse_arguments()
    if "RANK" in os.environ:
        train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), arguments)
        return
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    mp.spawn(train, args=(arguments.ranks, arguments), nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
