"""One rank: saves a sharded state with torch.distributed.checkpoint, synchronously and with async_save, and times both."""
import argparse
import json
import pathlib
import shutil
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard


def state_of(parameters, mesh):
    """Weights and two moments in fp32, cut over the ranks as FSDP does."""
    rows = parameters // 12 // 1024
    local = rows // mesh.size()
    return {f"{part}.{layer}": DTensor.from_local(torch.randn(local, 1024), mesh, [Shard(0)])
            for part in ("weight", "exp_avg", "exp_avg_sq") for layer in range(12)}


def slowest(seconds):
    """Of all ranks: a step goes on when the last one does."""
    value = torch.tensor([seconds])
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return value.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=int, required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--saves", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state = state_of(args.parameters, mesh)
    result = {"torch": torch.__version__, "sync": [], "stall": [], "async": [], "bytes": 0}

    def fresh(name):
        dist.barrier()
        folder = args.folder / name
        if dist.get_rank() == 0:
            shutil.rmtree(args.folder, ignore_errors=True)
            args.folder.mkdir(parents=True)
        dist.barrier()
        return folder

    for save in range(args.saves):
        folder = fresh(f"sync-{save}")
        begin = time.perf_counter()
        dcp.save(state, checkpoint_id=folder)
        dist.barrier()
        result["sync"].append(time.perf_counter() - begin)
        result["bytes"] = sum(file.stat().st_size for file in folder.iterdir())
        folder = fresh(f"async-{save}")
        begin = time.perf_counter()
        writing = dcp.async_save(state, checkpoint_id=folder)
        stall = time.perf_counter() - begin
        writing.result()
        result["async"].append(time.perf_counter() - begin)
        result["stall"].append(slowest(stall))  # not before: the save's own collectives are in the same group
    if dist.get_rank() == 0:
        print(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
