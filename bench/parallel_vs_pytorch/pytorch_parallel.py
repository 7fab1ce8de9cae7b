"""One rank of the PyTorch side: the GPT of bench/ddp_vs_pytorch under FSDP2 (fully_shard) or DTensor tensor parallelism.

Written as a careful PyTorch user would: fully_shard per block and on the root, prefetching as FSDP2 does by itself; or
parallelize_module with column- and row-wise linear layers, two sums per block. Fused attention, fused AdamW. Started by
run.py, one process per rank. Prints one JSON line on rank 0.
"""
import argparse
import json
import pathlib
import resource
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "ddp_vs_pytorch"))
from pytorch_ddp import Gpt, learning_rate, read_bytes  # noqa: E402


class SplitAttention(nn.Module):
    """Projections apart, so that each rank's columns are whole heads."""

    def __init__(self, block, world):
        super().__init__()
        hidden = block.projection.in_features
        self.heads, self.head_dim = block.heads // world, hidden // block.heads
        self.q, self.k, self.v = (nn.Linear(hidden, hidden) for _ in range(3))
        for part, layer in zip(block.qkv.weight.detach().chunk(3), (self.q, self.k, self.v)):
            layer.weight.data.copy_(part)
            layer.bias.data.zero_()
        self.projection = block.projection

    def forward(self, x):
        batch, seq, _ = x.shape
        q, k, v = (layer(x).view(batch, seq, self.heads, self.head_dim).transpose(1, 2) for layer in (self.q, self.k, self.v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(attended.transpose(1, 2).reshape(batch, seq, -1))


class TensorParallelBlock(nn.Module):
    def __init__(self, block, world):
        super().__init__()
        self.norm_1, self.norm_2 = block.norm_1, block.norm_2
        self.attention = SplitAttention(block, world)
        self.up, self.down = block.up, block.down

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


def tensor_parallel(model, mesh):
    model.blocks = nn.ModuleList(TensorParallelBlock(block, mesh.size()) for block in model.blocks)
    for block in model.blocks:
        parallelize_module(block, mesh, {"attention.q": ColwiseParallel(), "attention.k": ColwiseParallel(),
                                         "attention.v": ColwiseParallel(), "attention.projection": RowwiseParallel(),
                                         "up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def fully_sharded(model, mesh, reshard):
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    return fully_shard(model, mesh=mesh, reshard_after_forward=reshard)


def main():
    parser = argparse.ArgumentParser()
    for name, default in {"layers": 9, "hidden": 512, "heads": 8, "vocab": 256, "seq": 256, "micro": 2, "steps": 20,
                          "threads": 1, "lr-warmup": 20, "reshard": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--kind", choices=["fsdp2", "dtensor"], required=True)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--data", default="/usr/share/common-licenses")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(1)
    model = Gpt(args.layers, args.hidden, args.heads, args.vocab, args.seq)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    model = fully_sharded(model, mesh, bool(args.reshard)) if args.kind == "fsdp2" else tensor_parallel(model, mesh)
    # DTensors and plain tensors do not share a fused group.
    kinds = {}
    for parameter in model.parameters():
        kinds.setdefault(type(parameter.data).__name__, []).append(parameter)
    optimizer = torch.optim.AdamW([{"params": group} for group in kinds.values()], lr=args.lr, betas=(0.9, 0.95),
                                  weight_decay=0.1, fused=True)
    text = read_bytes(args.data)
    text = text[: int(0.95 * len(text))]
    samples = (len(text) - 1) // args.seq
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(1)).tolist()
    data_ranks, data_rank = (world, rank) if args.kind == "fsdp2" else (1, 0)

    seconds, losses = [], []
    for step in range(args.steps):
        begin = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr, args.lr_warmup)
        first = (step * data_ranks + data_rank) * args.micro
        rows = [order[(first + i) % samples] * args.seq for i in range(args.micro)]
        chunk = torch.stack([text[row : row + args.seq + 1] for row in rows]).long()
        loss = model(chunk[:, :-1].contiguous(), chunk[:, 1:].contiguous())
        loss.backward()
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
        tokens = args.micro * args.seq * data_ranks
        print(json.dumps({"torch": torch.__version__, "parameters": parameters, "steps": args.steps,
                          "tokens_per_second": tokens * len(timed) / sum(timed), "first_loss": losses[0],
                          "final_loss": mean_loss.item() / world, "peak_memory_bytes": peak.item()}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
