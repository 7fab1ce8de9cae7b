"""The wall: the GEMMs and the causal attention of a model alone, through PyTorch's cuBLAS and cuDNN.

usage: wall.py MODEL MICRO_BATCH ...; one JSON object per line.
"""
import json
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytorch_best import SHAPES


def milliseconds(f, repeats=20):
    for _ in range(5):
        f()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeats):
        f()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeats


def gemms(rows, into, out):
    """Forward, data gradient and weight gradient of one linear layer, on random data."""
    a = torch.randn(rows, into, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(out, into, device="cuda", dtype=torch.bfloat16)
    g = torch.randn(rows, out, device="cuda", dtype=torch.bfloat16)
    return milliseconds(lambda: a @ w.t()) + milliseconds(lambda: g @ w) + milliseconds(lambda: g.t() @ a)


def attention(batch, heads, seq, dim, backend):
    q, k, v = (torch.randn(batch, heads, seq, dim, device="cuda", dtype=torch.bfloat16, requires_grad=True)
               for _ in range(3))
    g = torch.randn_like(q)

    def f():
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(q, k, v, is_causal=True).backward(g)
        q.grad = k.grad = v.grad = None
    return milliseconds(f)


def wall(name, micro_batch):
    _, vocab, hidden, layers, heads, ffn, seq = SHAPES[name]
    rows = micro_batch * seq
    linear = layers * sum(gemms(rows, i, o) for i, o in
                          ((hidden, 3 * hidden), (hidden, hidden), (hidden, 2 * ffn), (ffn, hidden)))
    linear += gemms(rows, hidden, vocab)
    attend = layers * attention(micro_batch, heads, seq, hidden // heads, SDPBackend.CUDNN_ATTENTION)
    return {"model": name, "micro_batch": micro_batch, "gemm_ms": linear, "attention_ms": attend,
            "wall_ms": linear + attend, "tokens_per_second": rows / (linear + attend) * 1e3}


if __name__ == "__main__":
    for model, batch in zip(sys.argv[1::2], sys.argv[2::2]):
        print(json.dumps(wall(model, int(batch))), flush=True)
