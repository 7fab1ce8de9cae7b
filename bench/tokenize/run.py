"""`lockstep tokenize` against Hugging Face's `tokenizers`, CPU seconds per core in the same run, ids compared one by one.

    PYTHON bench/tokenize/run.py [--megabytes 100] [--rounds 2] [--kinds gpt2 llama3 ...] [--debian FOLDER] [--text FILE...]

PYTHON has the package `tokenizers`. The text is real and not repeated: files of this machine (documentation, licences, Python
and C headers), and with --debian those of packages of Debian, fetched into FOLDER and unpacked there: manual pages in ten
languages, books, dictionaries, documentation, source code. Places take turns, so that each is in every part; one JSON line per
file of up to 100 kB, none twice. Tokenizers of 32,000 ids (Unigram: 8,000) are trained on a part of it. Both sides read the same .jsonl file with
one thread, in turns; CPU seconds (user + system) count, not wall time, so that a busy machine tells the same. Ours are those of
the whole command: start, libtorch, reading, shards written and synced. Theirs are those of `encode_batch_fast` alone, without
start, reading and writing. --peer-share 5 gives theirs one of five batches, spread over the whole text: a fifth of the time, and
the rate is a rate. Memory does not grow with the text on either side; our peak is in the report.
"""
import argparse
import array
import gzip
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tests" / "data"))
import compare_tokenizers as makes  # noqa: E402
import measure  # noqa: E402
import tokenizers  # noqa: E402

PLACES = ["/usr/share/common-licenses", "/usr/share/doc", "/usr/share/perl", "/usr/lib/python3", "/usr/lib/python3.11",
          "/usr/include", "/usr/share/nodejs", "/usr/share/info"]
PACKAGES = ["linux-source-6.1", "linux-doc-6.1", "rust-doc", "python3.11-doc", "postgresql-doc-15", "debian-handbook", "dict-gcide",
            "dict-jargon", "wordnet-base", "bible-kjv-text", "miscfiles", "fortunes-de", "manpages-dev", "manpages-de", "manpages-es",
            "manpages-fr", "manpages-ja", "manpages-pl", "manpages-pt-br", "manpages-ru", "manpages-zh"]
# Inside the packages: one place each, so that they take turns.
INSIDE = ["usr/share/man", "usr/share/doc/debian-handbook", "usr/share/doc/linux-doc-6.1", "usr/share/doc/python3.11",
          "usr/share/doc/postgresql-doc-15", "usr/share/doc/rust-doc", "usr/share/dictd", "usr/share/wordnet", "usr/share/games",
          "usr/share/info", "usr/share/dict", "usr/src/linux-source-6.1/Documentation", "usr/src/linux-source-6.1/kernel",
          "usr/src/linux-source-6.1/fs", "usr/src/linux-source-6.1/net", "usr/src/linux-source-6.1/arch",
          "usr/src/linux-source-6.1/tools", "usr/src/linux-source-6.1/sound", "usr/src/linux-source-6.1/drivers"]
NOT_TEXT = {".png", ".jpg", ".svg", ".gif", ".woff", ".woff2", ".ico", ".pyc", ".so", ".a", ".o", ".bin", ".index", ".pdf", ".xz"}
LONGEST = 100_000
BATCH = 200  # documents
LARGEST = 32000  # ids of a tokenizer
LARGEST_UNIGRAM, UNIGRAM_TEXT = 8000, 1_000_000  # whose training takes the square of the time
KINDS = {"gpt2": LARGEST, "llama3": LARGEST, "qwen2-nfc": LARGEST, "llama2": LARGEST, "bert-uncased": 30522}


def fetch_packages(folder):
    """What the packages of Debian hold, below `folder`; nothing is installed."""
    whole = folder / "unpacked"
    if whole.is_dir():
        return whole
    parts, debs = folder / "unpacked.part", folder / "debs"
    shutil.rmtree(parts, ignore_errors=True)
    debs.mkdir(parents=True, exist_ok=True)
    missing = [name for name in PACKAGES if not list(debs.glob(f"{name}_*.deb"))]
    if missing:
        subprocess.run(["apt-get", "download", "-qq", *missing], cwd=debs, check=True, timeout=1800)
    for deb in sorted(debs.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(deb), str(parts)], check=True, timeout=600)
    for archive in (parts / "usr/src").glob("*.tar.xz"):
        subprocess.run(["tar", "-C", str(archive.parent), "-xf", str(archive)], check=True, timeout=1200)
        archive.unlink()
    parts.rename(whole)
    return whole


def text_of(path):
    """The first part of a file, None where it is no text."""
    if path.suffix.lower() in NOT_TEXT or path.is_symlink() or not path.is_file():
        return None
    try:
        with (gzip.open if path.suffix in (".gz", ".dz") else open)(path, "rb") as file:
            data = file.read(LONGEST)
        text = data.decode("utf-8", errors="strict" if len(data) < LONGEST else "ignore")
    except (UnicodeDecodeError, OSError, EOFError, zlib.error):
        return None
    return text if "\0" not in text and text.strip() else None


def files_below(place):
    for folder, inner, names in os.walk(place):
        inner.sort()
        yield from (pathlib.Path(folder) / name for name in sorted(names))


def documents(megabytes, places, texts):
    """Texts until there are so many bytes; the place that has given least so far is next."""
    seen, total = set(), 0
    turns = [[0, number, files_below(place)] for number, place in enumerate(places)]
    turns.append([0, len(places), iter(texts)])
    while turns and total < megabytes * 1e6:
        turn = min(turns)
        path = next(turn[2], None)
        if path is None:
            turns.remove(turn)
            continue
        text = text_of(path)
        digest = None if text is None else hashlib.sha1(text.encode()).digest()
        if digest is None or digest in seen:
            continue
        seen.add(digest)
        turn[0] += len(text.encode())
        total += len(text.encode())
        yield text


def some_of(texts, characters):
    for text in texts:
        if characters <= 0:
            return
        characters -= len(text)
        yield text


def train(kind, texts):
    for name, tokenizer, trainer, *more in makes.makes():
        if name != kind:
            continue
        trainer.vocab_size = KINDS.get(kind, LARGEST_UNIGRAM if kind.startswith("unigram") else LARGEST)
        if kind.startswith("unigram"):
            texts = some_of(texts, UNIGRAM_TEXT)
        tokenizer.train_from_iterator(texts, trainer)
        if not more:
            return tokenizer
        return (makes.as_unigram if kind.startswith("unigram") else makes.as_sentence_piece)(tokenizer, *more)
    raise ValueError(kind)


def texts_of(jsonl):
    with jsonl.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)["text"]


def theirs(tokenizer, jsonl, share, stored):
    """CPU seconds and megabytes of encoding one of `share` batches of documents; every id of theirs is compared."""
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    seconds, size, texts = 0.0, 0, texts_of(jsonl)
    for number in itertools.count():
        batch, ours_of_batch = list(itertools.islice(texts, BATCH)), list(itertools.islice(stored.documents, BATCH))
        if not batch and not ours_of_batch:
            return seconds, size / 1e6
        stored.check(len(batch) == len(ours_of_batch))
        if number % share:
            continue
        start = time.process_time()
        encoded = encode(batch, add_special_tokens=False)
        seconds += time.process_time() - start
        size += sum(len(text.encode()) for text in batch)
        for own, other in zip(ours_of_batch, encoded):
            stored.check(own == array.array("I", other.ids if stored.end is None else other.ids + [stored.end]))


def ours(lockstep, jsonl, tokenizer_file, output):
    """CPU seconds and peak bytes of the command."""
    shutil.rmtree(output, ignore_errors=True)
    command = [lockstep, "tokenize", str(jsonl), "--tokenizer", str(tokenizer_file), "--output", str(output), "--workers", "1"]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            said.seek(0)
            sys.exit(f"{' '.join(command)} failed: {said.read().decode()}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024


class Stored:
    """What is in the shards, document by document, and whether it is what was expected so far."""

    def __init__(self, folder):
        index = json.loads((folder / "index.json").read_text())
        self.end, self.tokens, self.identical, self.compared = index["end_of_text"], index["tokens"], True, 0
        self.documents = self._documents([folder / shard["file"] for shard in index["shards"]])

    @staticmethod
    def _documents(shards):
        open_ids = array.array("I")  # of a document that goes on in the next shard
        for file in shards:
            data = file.read_bytes()
            width, tokens = struct.unpack_from("<IQ", data, 12)
            count, = struct.unpack_from("<Q", data, 40)
            ids = array.array("I", memoryview(data)[64:64 + width * tokens].cast({2: "H", 4: "I"}[width]))
            ends = struct.unpack_from(f"<{count}Q", data, 64 + -(-width * tokens // 8) * 8)
            for begin, end in zip((0, *ends), ends):
                yield open_ids + ids[begin:end]
                open_ids = array.array("I")
            open_ids = open_ids + ids[ends[-1] if ends else 0:]

    def check(self, same):
        self.identical = self.identical and same
        self.compared += 1


def compare(kind, lockstep, jsonl, megabytes, folder, options):
    tokenizer = train(kind, itertools.islice(texts_of(jsonl), 3000))
    file = folder / f"{kind}.json"
    tokenizer.save(str(file))
    peer, own, peaks, identical = [], [], [], True
    for _ in range(options.rounds):
        seconds, peak = ours(lockstep, jsonl, file, folder / f"out-{kind}")
        own.append(seconds)
        peaks.append(peak)
        stored = Stored(folder / f"out-{kind}")
        seconds, peer_megabytes = theirs(tokenizer, jsonl, options.peer_share, stored)
        peer.append(seconds)
        identical = identical and stored.identical
    row = {"kind": kind, "vocabulary": tokenizer.get_vocab_size(), "tokens": stored.tokens, "identical": identical,
           "lockstep_megabytes": megabytes, "huggingface_megabytes": peer_megabytes,
           "huggingface_cpu_seconds": peer, "lockstep_cpu_seconds": own, "lockstep_peak_bytes": max(peaks),
           "huggingface_mb_per_cpu_second": peer_megabytes / statistics.median(peer),
           "lockstep_mb_per_cpu_second": megabytes / statistics.median(own)}
    row["ratio"] = row["lockstep_mb_per_cpu_second"] / row["huggingface_mb_per_cpu_second"]
    print(f"{kind}: {row['ratio']:.1f}x, {row['lockstep_mb_per_cpu_second']:.1f} against "
          f"{row['huggingface_mb_per_cpu_second']:.1f} MB per CPU second, {stored.tokens} ids, of {peer_megabytes:.0f} MB compared: "
          f"identical {identical}, our peak {max(peaks) / 2**20:.0f} MiB", flush=True)
    return row


def write_texts(jsonl, options):
    """Documents and megabytes written."""
    places = [pathlib.Path(place) for place in PLACES]
    if options.debian:
        whole = fetch_packages(pathlib.Path(options.debian).resolve())
        places += [whole / place for place in INSIDE]
    count, size = 0, 0
    with jsonl.open("w", encoding="utf-8") as out:
        for text in documents(options.megabytes, places, [pathlib.Path(text) for text in options.text]):
            out.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            count, size = count + 1, size + len(text.encode())
    return count, size / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), help="of those that tests/data/compare_tokenizers.py makes")
    parser.add_argument("--lockstep", default=str(measure.ROOT / "build" / "release" / "lockstep"))
    parser.add_argument("--debian", metavar="FOLDER", help="packages of Debian are fetched and unpacked here (3 GB)")
    parser.add_argument("--text", nargs="*", default=[], help="more files of text")
    parser.add_argument("--peer-share", type=int, default=1, metavar="N", help="Hugging Face's side takes one of N batches")
    parser.add_argument("--output", default=str(measure.REPORTS / "tokenize.json"))
    options = parser.parse_args()
    facts = {"machine": measure.machine(), "tokenizers": tokenizers.__version__, "rounds": options.rounds}
    with tempfile.TemporaryDirectory(dir=options.debian) as name:
        folder = pathlib.Path(name)
        facts["documents"], facts["megabytes"] = write_texts(folder / "texts.jsonl", options)
        print(f"{facts['megabytes']:.0f} MB in {facts['documents']} documents", flush=True)
        facts["rows"] = [compare(kind, options.lockstep, folder / "texts.jsonl", facts["megabytes"], folder, options)
                         for kind in options.kinds]
    pathlib.Path(options.output).write_text(json.dumps(facts, indent=1) + "\n")
    return 0 if all(row["identical"] for row in facts["rows"]) else 1


if __name__ == "__main__":
    sys.exit(main())
