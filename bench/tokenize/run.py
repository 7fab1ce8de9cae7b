"""`lockstep tokenize` against Hugging Face's `tokenizers`, CPU seconds per core in the same run, ids compared one by one.

    PYTHON bench/tokenize/run.py [--megabytes 100] [--rounds 2] [--keep FOLDER]

PYTHON has the package `tokenizers`. The text is real and not repeated: files of this machine (documentation, licences, Python
and C headers), one JSON line per file of up to 100 kB. Tokenizers of 32,000 ids are trained on a part of it. Both sides
read the same .jsonl file with one thread, in turns; CPU seconds (user + system) count, not wall time, so that a busy machine
tells the same. Ours are those of the whole command: start, libtorch, reading, shards written and synced. Theirs are those
of `encode_batch_fast` alone, without start, reading and writing.
"""
import argparse
import json
import os
import pathlib
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tests" / "data"))
import compare_tokenizers as makes  # noqa: E402
import measure  # noqa: E402
import tokenizers  # noqa: E402

PLACES = ["/usr/share/common-licenses", "/usr/share/doc", "/usr/share/perl", "/usr/lib/python3", "/usr/lib/python3.11",
          "/usr/include", "/usr/share/nodejs", "/usr/share/info"]
ENDINGS = {"", ".txt", ".md", ".rst", ".html", ".py", ".pm", ".pl", ".h", ".hpp", ".js", ".json", ".xml", ".pod"}
LONGEST = 100_000
KINDS = {"gpt2": 32000, "llama3": 32000, "qwen2-nfc": 32000, "llama2": 32000, "bert-uncased": 30522}


def documents(megabytes):
    """Texts of this machine until there are so many bytes; each once."""
    seen, total = set(), 0
    for place in PLACES:
        for path in sorted(pathlib.Path(place).rglob("*")):
            if path.suffix.lower() not in ENDINGS or path.is_symlink() or not path.is_file():
                continue
            try:
                text = path.read_text(encoding="utf-8")[:LONGEST]
            except (UnicodeDecodeError, OSError):
                continue
            if "\0" in text or not text.strip() or hash(text) in seen:
                continue
            seen.add(hash(text))
            total += len(text.encode())
            yield text
            if total >= megabytes * 1e6:
                return


def train(kind, texts):
    for name, tokenizer, trainer, *pre_tokenizer in makes.makes():
        if name != kind:
            continue
        trainer.vocab_size = KINDS[kind]
        tokenizer.train_from_iterator(texts, trainer)
        return makes.as_sentence_piece(tokenizer, *pre_tokenizer) if pre_tokenizer else tokenizer
    raise ValueError(kind)


def theirs(tokenizer, texts):
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    ids, seconds = [], 0.0
    for begin in range(0, len(texts), 500):
        start = time.process_time()
        encoded = encode(texts[begin:begin + 500], add_special_tokens=False)
        seconds += time.process_time() - start
        ids.extend(e.ids for e in encoded)
    return seconds, ids


def child_seconds():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def ours(lockstep, jsonl, tokenizer_file, output):
    shutil.rmtree(output, ignore_errors=True)
    before = child_seconds()
    command = [lockstep, "tokenize", str(jsonl), "--tokenizer", str(tokenizer_file), "--output", str(output), "--workers", "1"]
    if pathlib.Path(lockstep).name == "data_tokenize_tool":  # the same function without the command around it
        command = [lockstep, str(tokenizer_file), "--shards", str(output), str(jsonl)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed: {done.stderr}")
    return child_seconds() - before


def stored_ids(folder):
    index = json.loads((folder / "index.json").read_text())
    ids = []
    for shard in index["shards"]:
        data = (folder / shard["file"]).read_bytes()
        width = struct.unpack_from("<I", data, 12)[0]
        ids.extend(memoryview(data)[64:64 + width * shard["tokens"]].cast({2: "H", 4: "I"}[width]))
    return ids, index["end_of_text"]


def compare(kind, lockstep, jsonl, texts, folder, rounds):
    tokenizer = train(kind, texts[::max(1, len(texts) // 1500)])
    file = folder / f"{kind}.json"
    tokenizer.save(str(file))
    peer, own = [], []
    for _ in range(rounds):
        seconds, ids = theirs(tokenizer, texts)
        peer.append(seconds)
        own.append(ours(lockstep, jsonl, file, folder / f"out-{kind}"))
    stored, end = stored_ids(folder / f"out-{kind}")
    wanted = [i for document in ids for i in (document if end is None else document + [end])]
    megabytes = sum(len(t.encode()) for t in texts) / 1e6
    row = {"kind": kind, "vocabulary": tokenizer.get_vocab_size(), "tokens": len(stored), "identical": stored == wanted,
           "huggingface_cpu_seconds": peer, "lockstep_cpu_seconds": own,
           "huggingface_mb_per_cpu_second": megabytes / statistics.median(peer),
           "lockstep_mb_per_cpu_second": megabytes / statistics.median(own)}
    row["ratio"] = row["lockstep_mb_per_cpu_second"] / row["huggingface_mb_per_cpu_second"]
    print(f"{kind}: {row['ratio']:.1f}x, {row['lockstep_mb_per_cpu_second']:.1f} against "
          f"{row['huggingface_mb_per_cpu_second']:.1f} MB per CPU second, identical {row['identical']}", flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--lockstep", default=str(measure.ROOT / "build" / "release" / "lockstep"))
    options = parser.parse_args()
    texts = list(documents(options.megabytes))
    facts = {"machine": measure.machine(), "tokenizers": tokenizers.__version__, "documents": len(texts),
             "megabytes": sum(len(t.encode()) for t in texts) / 1e6, "rounds": options.rounds}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        jsonl = folder / "texts.jsonl"
        with jsonl.open("w", encoding="utf-8") as out:
            for text in texts:
                out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
        facts["rows"] = [compare(kind, options.lockstep, jsonl, texts, folder, options.rounds) for kind in options.kinds]
    (measure.REPORTS / "tokenize.json").write_text(json.dumps(facts, indent=1) + "\n")
    return 0 if all(row["identical"] for row in facts["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
