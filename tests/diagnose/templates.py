"""Jobs of the injected cases, and the data they read: tiny, seeded, made in a second."""
import json
import random
import struct

WORDS = "the lamb and the wolf walk in step over the hill to the old mill by the river".split()
OPTIMIZER = {"kind": "adamw", "learning_rate": 1e-3, "clip_norm": 1.0}


def text(folder, letters=None):
    path = folder / "text.txt"
    rng = random.Random(5)
    path.write_text(letters * 40000 if letters else " ".join(rng.choice(WORDS) for _ in range(9000)))
    return {"kind": "text", "path": str(path)}


def idx(path, items, shape):
    """MNIST's format."""
    path.write_bytes(struct.pack(">HBB", 0, 8, len(shape)) + struct.pack(f">{len(shape)}I", *shape) + bytes(items))


def images(folder):
    data = folder / "images"
    data.mkdir()
    rng = random.Random(9)
    for stem, count in (("train", 2048), ("t10k", 64)):
        idx(data / f"{stem}-images-idx3-ubyte", rng.randbytes(count * 28 * 28), (count, 28, 28))
        idx(data / f"{stem}-labels-idx1-ubyte", [rng.randrange(10) for _ in range(count)], (count,))
    return {"kind": "mnist", "path": str(data)}


def conversations(folder):
    """Answers of very unlike length: what packing is for."""
    path = folder / "conversations.jsonl"
    rng = random.Random(3)
    lines = []
    for _ in range(3000):
        words = rng.choice((2, 3, 4, 60))
        lines.append(json.dumps({"instruction": rng.choice(WORDS), "input": "",
                                 "output": " ".join(rng.choice(WORDS) for _ in range(words))}))
    path.write_text("\n".join(lines) + "\n")
    return {"kind": "instruction", "path": str(path), "chat_template": "alpaca"}


def blanks(folder):
    """A badly cleaned corpus: a word now and then between blanks."""
    path = folder / "blanks.txt"
    rng = random.Random(11)
    path.write_text("".join(rng.choice(WORDS) + " " * rng.randrange(400, 1200) for _ in range(500)))
    return str(path)


def answers(folder):
    """Two short answers for every long one."""
    path = folder / "answers.jsonl"
    rng = random.Random(17)
    lines = []
    for _ in range(1500):
        words = rng.choice((5, 5, 90))
        lines.append(json.dumps({"prompt": " ".join(rng.choice(WORDS) for _ in range(3)),
                                 "completion": " ".join(rng.choice(WORDS) for _ in range(words))}))
    path.write_text("\n".join(lines) + "\n")
    return str(path)


MADE = {"made:blanks": blanks, "made:answers": answers}


def job(name, folder):
    common = {"cluster": "1x2xcpu", "layout": {"dp": 2}, "optimizer": OPTIMIZER, "steps": 40, "threads_per_rank": 1,
              "batch": {"micro": 4, "accumulation": 2, "sequence_length": 64}, "checkpoint": {"final": False},
              "evaluation": {"batches": 1}, "seed": 3}
    sizes = {"layers": 4, "hidden": 64, "heads": 2, "vocab": 256, "max_sequence": 64}
    if name == "gpt":
        return {**common, "model": {"arch": "gpt", **sizes}, "data": text(folder)}
    if name == "llama":
        return {**common, "model": {"arch": "llama", **sizes, "ffn_hidden": 192}, "data": text(folder)}
    if name == "moe":
        model = {"arch": "moe", **sizes, "layers": 2, "ffn_hidden": 128, "experts": 4, "experts_per_token": 2}
        return {**common, "model": model, "layout": {"dp": 2, "ep": 2}, "data": text(folder)}
    if name == "mnist":
        return {**common, "model": "mnist-cnn", "batch": {"micro": 16}, "data": images(folder)}
    if name == "instruct":
        return {**common, "model": {"arch": "gpt", **sizes, "max_sequence": 512}, "data": conversations(folder),
                "batch": {"micro": 4, "accumulation": 2, "sequence_length": 512}}
    raise ValueError(f"there is no template `{name}`")
