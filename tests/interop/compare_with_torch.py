"""The CNNs and ResNet against plain torch.nn modules with the same weights, batch norm's running statistics included.

usage: compare_with_torch.py PROBE
"""

import sys

import torch
from comparison import BATCH_NORM_BOUNDS, BOUNDS, DTYPES, Report, reference, run_probe
from torch import nn
from torch.nn import functional as F

STEPS = 20


class MnistCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.fc1 = nn.Linear(64 * 5 * 5, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class CifarCnn(nn.Module):
    def __init__(self):
        super().__init__()
        channels = [3, 64, 128, 256, 256]
        for i in range(4):
            setattr(self, f"conv{i + 1}", nn.Conv2d(channels[i], channels[i + 1], 3, padding=1, bias=False))
            setattr(self, f"bn{i + 1}", nn.BatchNorm2d(channels[i + 1]))
        self.fc = nn.Linear(256, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        x = F.relu(self.bn3(self.conv3(x)))
        x = F.max_pool2d(F.relu(self.bn4(self.conv4(x))), 2)
        return self.fc(x.mean((2, 3)))


class Block(nn.Module):
    """torchvision's BasicBlock and Bottleneck."""

    def __init__(self, cin, width, stride, bottleneck):
        super().__init__()
        out = 4 * width if bottleneck else width
        shapes = [(cin, width, 3, stride), (width, width, 3, 1)]
        if bottleneck:
            shapes = [(cin, width, 1, 1), (width, width, 3, stride), (width, out, 1, 1)]
        self.depth = len(shapes)
        for i, (a, b, k, s) in enumerate(shapes, 1):
            setattr(self, f"conv{i}", nn.Conv2d(a, b, k, s, k // 2, bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm2d(b))
        self.downsample = None
        if stride != 1 or cin != out:
            self.downsample = nn.Sequential(nn.Conv2d(cin, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = x
        for i in range(1, self.depth + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            if i < self.depth:
                y = F.relu(y)
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self, blocks, bottleneck):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        channels = 64
        for stage, count in enumerate(blocks):
            width, layers = 64 << stage, []
            for i in range(count):
                layers.append(Block(channels, width, 2 if stage and i == 0 else 1, bottleneck))
                channels = 4 * width if bottleneck else width
            setattr(self, f"layer{stage + 1}", nn.Sequential(*layers))
        self.stages = len(blocks)
        self.fc = nn.Linear(channels, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


RESNET = "arch: resnet\nimage_size: 64\nimage_channels: 3\nclasses: 10\n"
CASES = {
    "mnist-cnn": (MnistCnn, "arch: mnist-cnn\nimage_size: 14\nimage_channels: 1\nclasses: 10\n", (1, 14)),
    "cifar-cnn": (CifarCnn, "arch: cifar-cnn\nimage_size: 16\nimage_channels: 3\nclasses: 10\n", (3, 16)),
    "resnet basic": (lambda: ResNet([2, 1, 1, 1], False), RESNET + "stage_blocks: [2, 1, 1, 1]\n", (3, 64)),
    "resnet bottleneck": (
        lambda: ResNet([2, 1, 1, 1], True),
        RESNET + "stage_blocks: [2, 1, 1, 1]\nbottleneck: true\n",
        (3, 64),
    ),
}


def main():
    report = Report()
    for case, (make, yaml, (channels, side)) in CASES.items():
        for precision, dtype in DTYPES.items():
            torch.manual_seed(1)
            torch.set_default_dtype(dtype)
            model = make()
            inputs = torch.randn(STEPS, 8, channels, side, side)
            targets = torch.randint(10, (STEPS, 8))

            def write_yaml(folder, text=yaml):
                (folder / "model.yaml").write_text(text)
                return "model.yaml"

            ours = run_probe(sys.argv[1], precision, write_yaml, model.state_dict(), inputs, targets)
            theirs = reference(model, lambda m, x: m(x), inputs, targets)
            report.compare(case, precision, ours, theirs, BOUNDS if make is MnistCnn else BATCH_NORM_BOUNDS)
    report.finish()


if __name__ == "__main__":
    main()
