"""Nets that are in no zoo of ours, as a Python user would write them: a ConvNeXt, a diffusion U-Net, a recurrent net
over a graph, a transformer of torch.nn. All sizes are small; what they compute with is not."""

import torch
from torch import nn
from torch.nn import functional


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x):
        x = functional.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """Liu et al. 2022, as torchvision builds it: depthwise 7x7, norm, two linear layers, layer scale, residual."""

    def __init__(self, width):
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(width, width, 7, padding=3, groups=width), LayerNorm2d(width, eps=1e-6),
                                   nn.Conv2d(width, 4 * width, 1), nn.GELU(), nn.Conv2d(4 * width, width, 1))
        self.layer_scale = nn.Parameter(torch.full((width, 1, 1), 0.5))

    def forward(self, x):
        return x + self.layer_scale * self.block(x)


class ConvNeXt(nn.Module):
    def __init__(self, widths=(12, 24), depth=2, classes=5):
        super().__init__()
        parts = [nn.Sequential(nn.Conv2d(3, widths[0], 4, stride=4), LayerNorm2d(widths[0], eps=1e-6))]
        for width, after in zip(widths, (*widths[1:], None)):
            parts.append(nn.Sequential(*(ConvNeXtBlock(width) for _ in range(depth))))
            if after is not None:
                parts.append(nn.Sequential(LayerNorm2d(width, eps=1e-6), nn.Conv2d(width, after, 2, stride=2)))
        self.features = nn.Sequential(*parts)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(LayerNorm2d(widths[-1], eps=1e-6), nn.Flatten(1), nn.Linear(widths[-1], classes))

    def forward(self, x):
        return self.classifier(self.avgpool(self.features(x)))


class ResidualBlock(nn.Module):
    """Of DDPM (Ho et al. 2020): group norm, the time embedding added between two convolutions. Batch norm in the first
    place, so that the net has buffers too."""

    def __init__(self, into, out, time):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(into), nn.Conv2d(into, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.norm2, self.conv2 = nn.GroupNorm(4, out), nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x, emb):
        h = self.conv1(functional.silu(self.norm1(x)))
        h = h + self.time(functional.silu(emb)).unsqueeze(2).unsqueeze(3)
        return self.skip(x) + self.conv2(functional.silu(self.norm2(h)))


class UNet(nn.Module):
    def __init__(self, width=8, time=16):
        super().__init__()
        self.half = time // 2
        self.embed = nn.Sequential(nn.Linear(time, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.down1, self.down2 = ResidualBlock(width, width, time), ResidualBlock(width, 2 * width, time)
        self.shrink = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.middle = ResidualBlock(2 * width, 2 * width, time)
        self.up1, self.up2 = ResidualBlock(4 * width, width, time), ResidualBlock(2 * width, width, time)
        self.grow = nn.Conv2d(width, width, 3, padding=1)
        self.last = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, noisy, t):
        rates = torch.exp(torch.arange(self.half, device=t.device, dtype=noisy.dtype) * (-6.0 / self.half))
        angles = t.to(noisy.dtype).unsqueeze(1) * rates.unsqueeze(0)
        emb = self.embed(torch.cat([angles.sin(), angles.cos()], dim=1))
        a = self.down1(self.first(noisy), emb)
        b = self.down2(self.shrink(a), emb)
        h = self.up1(torch.cat([self.middle(b, emb), b], dim=1), emb)
        h = self.grow(functional.interpolate(h, scale_factor=2.0, mode="nearest"))
        return self.last(self.up2(torch.cat([h, a], dim=1), emb))


class GraphNet(nn.Module):
    """Graph convolutions over a normalised adjacency matrix, then a GRU over the nodes in their order."""

    def __init__(self, features=5, width=12, outputs=2):
        super().__init__()
        self.into, self.mix = nn.Linear(features, width), nn.Linear(width, width)
        self.rnn = nn.GRU(width, width, num_layers=2, batch_first=True)
        self.out = nn.Linear(width, outputs)

    def forward(self, nodes, adjacency):
        degree = adjacency.sum(2, keepdim=True).clamp(min=1.0)
        h = torch.relu(self.into(torch.bmm(adjacency, nodes) / degree))
        h = torch.relu(self.mix(torch.bmm(adjacency, h) / degree)) + h
        h, _ = self.rnn(h)
        return self.out(h.mean(1))


class Transformer(nn.Module):
    """torch.nn's own encoder layers, masked so that a row sees those before it; pooled over the rows that are no padding."""

    def __init__(self, ids=11, width=16, classes=3):
        super().__init__()
        self.embed, self.norm = nn.Embedding(ids, width), nn.RMSNorm(width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)
        self.register_buffer("mask", torch.ones(6, 6).triu(1).bool())

    def forward(self, ids, length):
        beyond = torch.arange(ids.shape[1], device=ids.device).unsqueeze(0) >= length.unsqueeze(1)
        h = self.norm(self.encoder(self.embed(ids), mask=self.mask, src_key_padding_mask=beyond))
        h = h.masked_fill(beyond.unsqueeze(2), 0.0)
        return self.head(h.sum(1) / length.unsqueeze(1).to(h.dtype))


def convnext(samples, generator):
    return ConvNeXt(), {"pixels": torch.randn(samples, 3, 16, 16, generator=generator)}, torch.randint(
        0, 5, (samples,), generator=generator), "cross_entropy"


def unet(samples, generator):
    inputs = {"noisy": torch.randn(samples, 1, 8, 8, generator=generator),
              "t": torch.randint(0, 1000, (samples,), generator=generator)}
    return UNet(), inputs, torch.randn(samples, 1, 8, 8, generator=generator), "mse"


def graph(samples, generator):
    inputs = {"nodes": torch.randn(samples, 7, 5, generator=generator),
              "adjacency": (torch.rand(samples, 7, 7, generator=generator) < 0.4).float()}
    return GraphNet(), inputs, torch.randn(samples, 2, generator=generator), "huber"


def transformer(samples, generator):
    inputs = {"ids": torch.randint(0, 11, (samples, 6), generator=generator),
              "length": torch.randint(1, 7, (samples,), generator=generator)}
    return Transformer(), inputs, torch.randint(0, 3, (samples,), generator=generator), "cross_entropy"


NETS = {"convnext": convnext, "unet": unet, "graph": graph, "transformer": transformer}
LOSSES = {"cross_entropy": functional.cross_entropy, "mse": functional.mse_loss, "huber": functional.huber_loss}
