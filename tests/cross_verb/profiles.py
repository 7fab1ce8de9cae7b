"""Profiles as `lockstep calibrate` would write them, made up: every precision, operator and number of ranks is there, so
that any tiny job has a price."""

PRECISIONS = ("fp64", "fp32", "fp16", "bf16")
MATMULS = ("forward", "input_gradient", "weight_gradient", "convolution_forward", "convolution_backward")
KERNELS = ("add", "gelu", "silu", "relu", "multiply", "layer_norm", "rms_norm", "batch_norm", "rotary", "dropout",
           "embedding", "cross_entropy", "max_pool", "average_pool", "residual_add")
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send_receive")


def make_profile(ranks, flops=2e10, name="a machine made up"):
    """lockstep.profile/1 of `ranks` CPU ranks that reach `flops` each."""
    matmuls = [{"kind": kind, "precision": precision, "m": size, "n": size, "k": size, "spread": 0.01,
                "flops_per_second": flops * size / (size + 32)}
               for kind in MATMULS for precision in PRECISIONS for size in (16, 64, 256, 1024)]
    attention = [{"precision": precision, "causal": causal, "heads": 8, "sequence": sequence, "head_dim": 8,
                  "forward_seconds": 1e-5 + sequence ** 2 * 8e-1 / flops, "spread": 0.01,
                  "backward_seconds": 2e-5 + sequence ** 2 * 2 / flops}
                 for precision in PRECISIONS for causal in (True, False) for sequence in (16, 64, 256)]
    pointwise = [{"kernel": kernel, "precision": precision, "elements": elements, "spread": 0.01,
                  "forward_seconds": 5e-6 + elements * 10 / flops, "backward_seconds": 8e-6 + elements * 20 / flops}
                 for kernel in KERNELS for precision in PRECISIONS for elements in (1024, 65536, 1048576)]
    collectives = [{"op": op, "ranks": count, "bytes": size, "seconds": 1e-5 * count + size / 2e9, "spread": 0.01}
                   for op in COLLECTIVES for count in sorted({2, max(2, ranks)}) for size in (1024, 65536, 1 << 20)]
    return {"schema": "lockstep.profile/1",
            "provenance": {"hardware": name, "software": "libtorch, local", "version": "0.1.0",
                           "date": "2026-01-01T00:00:00Z", "method": "lockstep calibrate", "ranks": ranks,
                           "threads": 1, "cores": 8, "backend": "local"},
            "tables": {"peak_flops": flops, "matmuls": matmuls, "attention": attention, "pointwise": pointwise,
                       "memory_bytes_per_second": 1e10, "operator_seconds": 6e-6, "backward_operator_seconds": 2e-5,
                       "optimizer_bytes_per_second": 2e10, "collectives": collectives, "overlap": 0.0,
                       "framework_bytes": 160e6, "checks": []}}
