"""Peer: ResNet-50 v1.5 as PyTorch trains it best on one GPU: channels last, bf16 autocast, fused SGD, torch.compile, cuDNN's
algorithm search. Images and labels lie on the GPU before it starts; the program under test reads its own from files.

usage: pytorch_resnet.py [--batch 256] [--mode default] [--warm 20] [--steps 40] [--gate FILE] [--profile]
The last line of its output is JSON. With --gate it compiles and warms up, then waits for FILE before it measures.
"""
import argparse
import json
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.downsample = None
        if stride != 1 or inputs != 4 * width:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)), inplace=True)


class ResNet50(nn.Module):
    def __init__(self, classes=1000):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        blocks, channels = [], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            for i in range(count):
                blocks.append(Bottleneck(channels, 64 << stage, 2 if stage and i == 0 else 1))
                channels = 256 << stage
        self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        return self.fc(self.blocks(x).mean((2, 3)))


def make_step(options):
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.benchmark_limit = 0  # every algorithm
    torch.set_float32_matmul_precision("high")
    model = ResNet50().cuda().to(memory_format=torch.channels_last).train()
    images = torch.randn(options.batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (options.batch,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True)
    compiled = model if options.mode == "eager" else torch.compile(
        model, **({} if options.mode == "default" else {"mode": options.mode}))

    def step():
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(compiled(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def profile(step):
    """Milliseconds of one step by kernel, longest first."""
    from torch.profiler import ProfilerActivity
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(3):
            step()
        torch.cuda.synchronize()
    rows = sorted(((e.self_device_time_total / 3e3, e.count // 3, e.key) for e in seen.key_averages()), reverse=True)
    for ms, count, name in rows[:60]:
        print(f"{ms:8.3f} ms {count:4d} {name[:110]}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--mode", default="default", help="of torch.compile; eager: without")
    parser.add_argument("--warm", type=int, default=20)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--gate", default="")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    started = time.time()
    step = make_step(options)
    step()
    torch.cuda.synchronize()
    first = time.time() - started
    print("ready", flush=True)
    while options.gate and not os.path.exists(options.gate):
        time.sleep(0.2)
    for _ in range(options.warm):
        step()
    torch.cuda.synchronize()
    # Without a synchronisation inside: what the host needs is hidden, as in a training run that reads the loss rarely.
    events = [torch.cuda.Event(enable_timing=True) for _ in range(options.steps + 1)]
    events[0].record()
    for event in events[1:]:
        loss = step()
        event.record()
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) for a, b in zip(events, events[1:]))
    median = times[len(times) // 2]
    if options.profile:
        profile(step)
    print(json.dumps({"mode": options.mode, "batch": options.batch, "step_ms": round(median, 2), "min_ms": round(times[0], 2),
                      "max_ms": round(times[-1], 2), "images_per_second": round(options.batch / median * 1e3, 1),
                      "mem_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2), "first_step_seconds": round(first, 1),
                      "loss": loss.item()}), flush=True)


if __name__ == "__main__":
    main()
