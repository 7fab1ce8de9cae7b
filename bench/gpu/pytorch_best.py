"""The best PyTorch we could write for the peer's models: torch.compile, cuDNN attention, the residual stream in bf16,
the head and its loss in chunks without a logits tensor, fused AdamW on fp32 parameters.

usage: pytorch_best.py MODEL MICRO_BATCH (1.36b, 7b or 124m); prints one JSON object per line, as pytorch_peer.py does.
"""
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import pytorch_peer as peer

SHAPES = {"1.36b": ("llama1.3B", 32000, 2048, 24, 16, 5632, 2048), "7b": ("llama7B", 32000, 4096, 32, 32, 11008, 2048),
          "124m": ("gpt124M", 50304, 768, 12, 12, 2048, 1024), "tiny": ("tiny", 512, 256, 4, 4, 704, 256)}
CHUNK_ROWS = 8192


@torch.compile
def chunk_gradient(hidden, weight, targets, scale):
    """Loss of a chunk of rows, and the gradient of its logits in bf16; the logits live in this function only."""
    logits = hidden @ weight.t()
    log_sum = torch.logsumexp(logits.float(), -1)
    picked = logits.gather(1, targets[:, None]).squeeze(1).float()
    gradient = torch.exp(logits.float() - log_sum[:, None])
    is_target = torch.arange(logits.size(1), device=targets.device)[None, :] == targets[:, None]
    gradient = torch.where(is_target, gradient - 1.0, gradient)
    return (log_sum - picked).sum() * scale, (gradient * scale).to(logits.dtype)


class ChunkedLoss(torch.autograd.Function):
    """Head and cross-entropy; gradients are made in forward, chunk by chunk, and scaled in backward."""

    @staticmethod
    def forward(ctx, hidden, weight, targets):
        weight16 = weight.to(torch.bfloat16)
        loss, dhidden = torch.zeros((), device=hidden.device), torch.empty_like(hidden)
        dweight = None
        for begin in range(0, hidden.size(0), CHUNK_ROWS):
            rows = slice(begin, begin + CHUNK_ROWS)
            part, dlogits = chunk_gradient(hidden[rows], weight16, targets[rows], 1.0 / hidden.size(0))
            loss += part
            torch.mm(dlogits, weight16, out=dhidden[rows])
            grad = dlogits.t() @ hidden[rows]
            dweight = grad.float() if dweight is None else dweight.add_(grad)
        ctx.save_for_backward(dhidden, dweight)
        return loss

    @staticmethod
    def backward(ctx, scale):
        dhidden, dweight = ctx.saved_tensors
        return dhidden * scale, dweight * scale, None


class BestLM(peer.LM):
    def body(self, x):
        h = self.emb(x).to(torch.bfloat16)
        for block in self.blocks:
            h = block(h, self.cos, self.sin)
        return self.n(h)

    def forward(self, x, y):
        h = self.body(x).flatten(0, 1).to(torch.bfloat16)
        return ChunkedLoss.apply(h, self.head.weight, y.flatten())


real_compile = torch.compile


def compile_body(model):
    """Only the body is compiled as a whole: the loss is compiled per chunk."""
    model.body = real_compile(model.body)
    return model


def run(name, micro_batch):
    label, *shape = SHAPES[name]
    original = peer.LM
    peer.LM, torch.compile = BestLM, compile_body
    try:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            peer.run(label + "-best", *shape, micro_batch, "compile")
    finally:
        peer.LM, torch.compile = original, real_compile


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
