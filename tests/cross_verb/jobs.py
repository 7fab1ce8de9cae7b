"""Random jobs that a core trains in milliseconds: model x ranks x layout x batch x options. Half of the layouts make
sense; the others break one rule or another, which is what the verbs are asked about."""
import random
import struct

WORDS = "the lamb and the wolf walk in step over the hill to the old mill by the river".split()
PRECISIONS = ("fp32", "fp32", "fp32", "bf16", "bf16", "fp64")
SEQUENCES = (8, 12, 16, 16, 18, 20, 24, 28, 30, 32, 32, 33, 36, 40, 44, 48, 52, 64)


def write_data(folder):
    """Data of every kind that the models read, small and seeded."""
    rng = random.Random(5)
    (folder / "text.txt").write_text(" ".join(rng.choice(WORDS) for _ in range(4000)))
    (folder / "labels.tsv").write_text(
        "".join(f"{rng.randrange(2)}\t{' '.join(rng.choice(WORDS) for _ in range(6))}\n" for _ in range(600)))
    mnist = folder / "mnist"
    mnist.mkdir()
    for name, count in (("train", 512), ("t10k", 64)):
        labels = bytes(rng.randrange(10) for _ in range(count))
        images = rng.randbytes(784 * count)
        (mnist / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + images)
        (mnist / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels)
    cifar = folder / "cifar"
    cifar.mkdir()
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        (cifar / name).write_bytes(b"".join(bytes([rng.randrange(10)]) + rng.randbytes(3072) for _ in range(128)))


def make_model(rng, kind):
    sizes = {"layers": rng.choice((2, 3, 4, 4, 6)), "hidden": rng.choice((16, 24, 32, 48)), "vocab": 256,
             "max_sequence": 64}
    heads = rng.choice((2, 4, 4, 6, 8))
    sizes["hidden"] = sizes["hidden"] // heads * heads or heads
    if sizes["hidden"] // heads % 2 == 1:  # rotary embeddings turn pairs
        sizes["hidden"] *= 2
    attention = {"heads": heads}
    if rng.random() < 0.6:
        attention["kv_heads"] = rng.choice([k for k in (1, 2, 3, 4) if heads % k == 0])
    wide = {"ffn_hidden": rng.choice((32, 40, 48, 66))}
    if kind == "gpt":
        return {"arch": "gpt", **sizes, "heads": heads, "tied_embeddings": rng.random() < 0.5,
                "dropout": rng.choice((0, 0.1))}
    if kind == "llama":
        return {"arch": "llama", **sizes, **attention, **wide, "tied_embeddings": rng.random() < 0.3}
    if kind == "moe":
        extra = rng.choice(({}, {"router_auxiliary_loss": 0.01}, {"capacity_factor": 1.5}, {"shared_experts": 1}))
        return {"arch": "moe", **sizes, **attention, **wide, "experts": rng.choice((4, 6, 8)), "experts_per_token": 2,
                **extra}
    if kind == "mamba":
        return {"arch": "mamba", **sizes, "state_size": 8}
    if kind == "bert":  # the last id is the mask of masked language models
        return {"arch": "bert", **{**sizes, "vocab": 260}, "heads": heads}
    if kind == "bert-classifier":
        return {"arch": "bert", **{**sizes, "vocab": 260}, "heads": heads, "classes": 2}
    if kind == "cnn":
        return {"arch": "mnist-cnn"}
    return {"arch": "resnet", "stage_blocks": [1, 1, 1, 1], "image_size": 64, "classes": 10}


def make_data(kind, folder):
    if kind == "cnn":
        return {"kind": "mnist", "path": str(folder / "mnist")}
    if kind == "resnet":
        return {"kind": "cifar10", "path": str(folder / "cifar")}
    if kind == "bert-classifier":
        return {"kind": "classification", "path": str(folder / "labels.tsv")}
    return {"kind": "text", "path": str(folder / "text.txt")}


def split_ranks(rng, world, axes):
    """A product of `axes` that is `world`: each prime factor goes to one of them."""
    sizes = dict.fromkeys(axes, 1)
    rest, factor = world, 2
    while rest > 1:
        if rest % factor:
            factor += 1
            continue
        sizes[rng.choice(axes)] *= factor
        rest //= factor
    return sizes


def split_layers(rng, layers, stages):
    cuts = sorted(rng.randrange(layers + 1) for _ in range(stages - 1))
    return [b - a for a, b in zip([0, *cuts], [*cuts, layers])]


def make_layout(rng, model, world):
    images = "layers" not in model
    axes = ("dp", "shard") if images and rng.random() < 0.9 else ("pp", "dp", "shard", "cp", "tp")
    layout = split_ranks(rng, world, axes)
    if layout["shard"] > 1 or (layout.get("cp", 1) > 1 and rng.random() < 0.3) or rng.random() < 0.03:
        layout["zero"] = rng.choice((1, 2, 3, 3))
    if rng.random() < 0.03:
        layout["zero"] = 0
    pp = layout.get("pp", 1)
    if pp > 1:
        layout["schedule"] = rng.choice(("gpipe", "1f1b", "interleaved", "interleaved", "zero_bubble", "zero_bubble"))
        if layout["schedule"] == "interleaved" or (layout["schedule"] == "zero_bubble" and rng.random() < 0.6):
            layout["virtual_stages"] = 2 if rng.random() < 0.9 else 3
        if rng.random() < 0.3 and not images:
            layout["stage_layers"] = split_layers(rng, model["layers"], pp * layout.get("virtual_stages", 1))
    if layout.get("cp", 1) > 1 and rng.random() < 0.35:
        layout["context_exchange"] = "all_to_all"
    if layout.get("tp", 1) > 1 and rng.random() < 0.4:
        layout["sequence_parallel"] = True
    if "experts" in model and rng.random() < 0.7:
        layout["ep"] = rng.choice((2, 2, 4))
    if rng.random() < 0.3:
        layout["recompute"] = rng.choice(("selective", "full"))
    if rng.random() < 0.15:
        layout["offload"] = rng.choice(("optimizer", "parameters"))
    return {key: value for key, value in layout.items() if value != 1 or key == "zero"}


def make_options(rng, kind):
    """Sections beside model, layout and batch."""
    options = {"precision": rng.choice(PRECISIONS)}
    communication = {"backend": "local", "timeout": "200s"}
    if rng.random() < 0.35:
        communication["compression"] = rng.choice(("fp16", "bf16", "powersgd", "onebit"))
    if rng.random() < 0.1:
        communication["reshard_after_forward"] = False
    if rng.random() < 0.1:
        communication["reduce_each_micro_step"] = True
    if rng.random() < 0.1:
        communication["bucket"] = "4KiB"
    options["communication"] = communication
    optimizer = {"kind": rng.choice(("adamw", "adamw", "sgd")), "learning_rate": 1e-3}
    if rng.random() < 0.5:
        optimizer["clip_norm"] = 1.0
    if rng.random() < 0.03:
        optimizer["state_precision"] = "bf16"
    options["optimizer"] = optimizer
    targets = {"gpt": ["c_attn"], "llama": ["q_proj", "v_proj"], "moe": ["q_proj", "v_proj"], "mamba": ["in_proj"],
               "bert": ["query", "value"], "bert-classifier": ["query", "value"]}
    if kind in targets and rng.random() < 0.15:
        options["lora"] = {"rank": rng.choice((2, 4)), "targets": targets[kind]}
    if rng.random() < 0.08:
        options["activation_offload"] = True
    return options


KINDS = ("gpt", "gpt", "llama", "llama", "llama", "moe", "moe", "mamba", "bert", "bert-classifier", "cnn", "resnet")


def spoil(rng, job):
    """One thing that no engine trains, beside whatever the layout has."""
    model, batch = job["model"], job["batch"]
    if "layers" not in model:
        return
    choices = [lambda: batch.update(sequence_length=96)]  # beyond the model's positions
    if model["arch"] in ("gpt", "bert"):
        choices.append(lambda: model.update(kv_heads=1))
    if model["arch"] in ("llama", "moe"):
        choices.append(lambda: model.update(head_dim=7))
    if model["arch"] in ("llama", "mamba"):
        choices.append(lambda: model.update(activation="relu"))
    if model["arch"] == "mamba":
        choices.append(lambda: model.update(dropout=0.1))
    rng.choice(choices)()


def make_job(seed, folder):
    """The job without a cluster, and the number of its ranks."""
    rng = random.Random(seed)
    kind = rng.choice(KINDS)
    model = make_model(rng, kind)
    world = 2 if kind == "resnet" else rng.choice((1, 2, 2, 4, 4, 4, 6, 8, 8))  # millions of parameters
    batch = {"micro": rng.choice((1, 1, 2, 3)), "accumulation": rng.choice((1, 2, 3, 4, 5))}
    if "layers" in model:
        batch["sequence_length"] = rng.choice(SEQUENCES)
    job = {"name": f"job-{seed}", "model": model, "data": make_data(kind, folder),
           "layout": make_layout(rng, model, world), "batch": batch, **make_options(rng, kind), "steps": 1,
           "threads_per_rank": 1, "checkpoint": {"every": 0, "final": False}, "evaluation": {"batches": 1}, "seed": 3}
    if rng.random() < 0.06:
        spoil(rng, job)
    return job, world


def make_constraints(rng, job, world):
    """What a user might fix of a plan, so that more than replicas comes out of the search."""
    divisors = [d for d in (2, 4, 8) if world % d == 0]
    if not divisors or rng.random() < 0.25:
        return ()
    choices = ["dp"]
    if "layers" in job["model"]:
        choices += ["tp", "pp", "cp", "cp", "cp", "cp", "cp", "cp", "cp + sp", "shard", "sp", "sp", "virtual",
                    "zero_bubble", "recompute", "offload"]
    if "experts" in job["model"]:
        choices += ["ep", "ep"]
    choice = rng.choice(choices)
    size = rng.choice(divisors)
    text = {"sp": f"tp={size},sequence_parallel=true", "virtual": f"pp={size},schedule=interleaved",
            "zero_bubble": f"pp={size},schedule=zero_bubble", "recompute": f"recompute=full,pp={size}",
            "cp + sp": "cp=2,tp=2,sequence_parallel=true", "offload": "offload=optimizer", "shard": f"shard={size}",
            "cp": f"cp={size},context_exchange={rng.choice(('ring', 'ring', 'all_to_all'))}"}.get(choice,
                                                                                              f"{choice}={size}")
    return ("--fix", text)
