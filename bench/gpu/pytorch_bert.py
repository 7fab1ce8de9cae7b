"""PyTorch's own best effort at fine-tuning BERT-large: plain modules with packed qkv, scaled_dot_product_attention,
torch.compile, bf16 compute with fp32 parameters and states, fused AdamW, dropout 0.1 on activations and attention.

usage: pytorch_bert.py [--batch 32] [--sequence 384] [--attention flash|cudnn|default] [--stream bf16|fp32]
                       [--compile model|layers|none] [--steps 20] [--warmup 10] [--hold FILE]
--stream fp32 is what autocast alone gives (norms and the residual stream in fp32); bf16 keeps the stream in bf16 and
computes norms in fp32 inside. --hold: after the first step, which compiles, wait until FILE is there, so that others may
measure meanwhile. Prints one JSON object.
"""
import argparse
import contextlib
import json
import os
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

HIDDEN, LAYERS, HEADS, INNER, VOCAB, POSITIONS, DROPOUT = 1024, 24, 16, 4096, 30522, 512, 0.1


class Norm(nn.LayerNorm):
    """Layer normalisation with fp32 arithmetic that returns the dtype it is given."""

    def forward(self, x):
        with torch.autocast("cuda", enabled=False):
            return F.layer_norm(x.float(), self.normalized_shape, self.weight, self.bias, self.eps).to(x.dtype)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, INNER), nn.Linear(INNER, HIDDEN)
        self.norm1, self.norm2 = Norm(HIDDEN, eps=1e-12), Norm(HIDDEN, eps=1e-12)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, HIDDEN // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=DROPOUT if self.training else 0.0)
        y = self.out(y.transpose(1, 2).reshape(b, t, HIDDEN))
        x = self.norm1(x + F.dropout(y, DROPOUT, self.training).to(x.dtype))
        y = self.down(F.gelu(self.up(x)))
        return self.norm2(x + F.dropout(y, DROPOUT, self.training).to(x.dtype))


class Bert(nn.Module):
    def __init__(self, stream):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(POSITIONS, HIDDEN)
        self.types = nn.Embedding(2, HIDDEN)
        self.norm = Norm(HIDDEN, eps=1e-12)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.pooler, self.classifier = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 2)
        self.stream = stream

    def forward(self, tokens, target):
        x = self.words(tokens) + self.places.weight[: tokens.size(1)] + self.types.weight[0]
        x = F.dropout(self.norm(x), DROPOUT, self.training).to(self.stream)
        for layer in self.layers:
            x = layer(x)
        pooled = F.dropout(torch.tanh(self.pooler(x[:, 0])), DROPOUT, self.training)
        return F.cross_entropy(self.classifier(pooled).float(), target)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--sequence", type=int, default=384)
    parser.add_argument("--attention", choices=["flash", "cudnn", "default"], default="cudnn")
    parser.add_argument("--stream", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--compile", choices=["model", "layers", "none"], default="model")
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--hold", default="")
    a = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Bert(torch.bfloat16 if a.stream == "bf16" else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5, weight_decay=0.01, fused=True)
    if a.compile == "model":
        model = torch.compile(model)
    if a.compile == "layers":
        for layer in model.layers:
            layer.compile()
    tokens = torch.randint(0, VOCAB, (a.batch, a.sequence), device="cuda")
    target = torch.randint(0, 2, (a.batch,), device="cuda")
    kinds = {"flash": [SDPBackend.FLASH_ATTENTION], "cudnn": [SDPBackend.CUDNN_ATTENTION]}
    chosen = sdpa_kernel(kinds[a.attention]) if a.attention in kinds else contextlib.nullcontext()

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens, target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    with chosen:
        begin = time.time()
        step().item()
        warm, times = time.time() - begin, []
        print("compiled", file=sys.stderr, flush=True)
        while a.hold and not os.path.exists(a.hold):
            time.sleep(0.2)
        for _ in range(a.warmup):
            loss = step()
        torch.cuda.synchronize()
        for _ in range(a.steps):
            begin = time.time()
            loss = step()
            torch.cuda.synchronize()
            times.append(time.time() - begin)
    middle = statistics.median(times)
    print(json.dumps({"name": "bert-large", "batch": a.batch, "sequence": a.sequence, "attention": a.attention,
                      "stream": a.stream, "compile": a.compile, "parameters": sum(p.numel() for p in model.parameters()),
                      "step_ms": middle * 1e3, "min_ms": min(times) * 1e3, "max_ms": max(times) * 1e3,
                      "sequences_per_second": a.batch / middle, "first_step_seconds": round(warm, 1), "loss": loss.item(),
                      "mem_gib": torch.cuda.max_memory_allocated() / 2**30}))


if __name__ == "__main__":
    main()
