"""`lockstep tokenize` as a user runs it: shards that do not depend on kills, and jobs that start on cached tokens."""
import json
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from harness import EndToEnd  # noqa: E402



def byte_level_tokenizer():
    """All bytes, a few merges and an end-of-text token, split as GPT-2 does."""
    printable = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    others = [b for b in range(256) if b not in printable]
    stand_in = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    vocabulary = {stand_in[b]: b for b in range(256)}
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("e", "r")]
    for left, right in merges:
        vocabulary[left + right] = len(vocabulary)
    return {"added_tokens": [{"id": 300, "content": "<|endoftext|>", "special": True, "normalized": False}],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
            "model": {"type": "BPE", "vocab": vocabulary, "merges": [" ".join(m) for m in merges]}}


class Tokenize(EndToEnd):
    def setUp(self):
        super().setUp()
        self.environment["LOCKSTEP_CACHE"] = str(self.folder / "cache")
        (self.folder / "tokenizer.json").write_text(json.dumps(byte_level_tokenizer()))

    def tokenize(self, *arguments, expect=0, **options):
        done = self.run_lockstep("tokenize", *arguments, "--json", timeout=300, **options)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return json.loads(done.stdout)

    def shards(self, folder):
        return {path.name: path.read_bytes() for path in sorted((self.folder / folder).glob("tokens-*.bin"))}

    def write_text(self, megabytes):
        lines = "".join(f"the rain in the north, line {i} of {i * 7919 % 10007}\n" for i in range(20000))
        with (self.folder / "text.txt").open("w") as out:
            for part in range(1 + int(megabytes * 1e6) // len(lines)):
                out.write(f"part {part}\n{lines}")

    def test_a_killed_run_continues_and_the_shards_are_those_of_an_undisturbed_one(self):
        self.write_text(20)
        arguments = ["text.txt", "--tokenizer", "tokenizer.json", "--shard-size", "512KiB", "--workers", "2"]
        whole = self.tokenize(*arguments, "--output", "whole")
        self.assertGreater(whole["shards"], 20)
        killed = self.start("tokenize", *arguments, "--output", "killed")
        deadline = time.monotonic() + 120
        while len(list((self.folder / "killed").glob("tokens-*.json"))) < 3 and killed.poll() is None:
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.001)
        killed.send_signal(signal.SIGKILL)
        killed.communicate(timeout=60)
        kept = len(self.shards("killed"))
        again = self.tokenize(*arguments, "--output", "killed")
        self.assertEqual(again["tokens"], whole["tokens"])
        self.assertEqual(self.shards("killed"), self.shards("whole"))
        if killed.returncode == -signal.SIGKILL and kept < whole["shards"]:
            self.assertGreaterEqual(again["kept"], 1)

    def test_shards_train_and_cached_text_gives_the_same_losses(self):
        self.write_text(0.5)
        self.tokenize("text.txt", "--tokenizer", "tokenizer.json", "--output", "tokens")
        job = self.folder / "job.yaml"
        job.write_text("model: {arch: gpt, layers: 1, hidden: 16, heads: 2, vocab: 301, max_sequence: 32}\n"
                       "cluster: 1x2xcpu\nlayout: {dp: 2}\nbatch: {micro: 2, sequence_length: 32}\nsteps: 4\n"
                       "data: {kind: tokens, path: tokens}\ncheckpoint: {every: 0, final: false}\n")
        by_shards = self.train(job)
        by_text = self.train(job, "data.kind=text", "data.path=text.txt", "data.tokenizer=tokenizer.json")
        self.assertEqual(self.losses(by_shards["run"]), self.losses(by_text["run"]))
        cached = list((self.folder / "cache" / "tokens").iterdir())
        self.assertEqual(len(cached), 1)
        times = {path: path.stat().st_mtime_ns for path in cached[0].iterdir()}
        self.train(job, "data.kind=text", "data.path=text.txt", "data.tokenizer=tokenizer.json")
        self.assertEqual({path: path.stat().st_mtime_ns for path in cached[0].iterdir()}, times)

    def test_what_is_wrong_is_one_line(self):
        self.write_text(0.01)
        (self.folder / "wrong.txt").write_bytes(b"PAR1" + bytes(100))
        (self.folder / "lines.jsonl").write_text('{"text": "the"}\n{"body": "the"}\n')
        base = ["--tokenizer", "tokenizer.json", "--output", "out"]
        self.expect_error(2, ["wrong.txt", "a Parquet file"], "tokenize", "wrong.txt", *base)
        self.expect_error(2, ["lines.jsonl:2", "`text` is absent", "--field"], "tokenize", "lines.jsonl", "--output", "out2",
                          "--tokenizer", "tokenizer.json")
        self.expect_error(4, ["absent.txt", "no such file"], "tokenize", "absent.txt", *base)
        self.expect_error(2, ["--shard-size"], "tokenize", "text.txt", *base, "--shard-size", "1KiB")
        self.assertEqual(self.tokenize("lines.jsonl", "--output", "out3", "--tokenizer", "tokenizer.json", "--on-bad",
                                       "skip")["skipped"], 1)

    def test_parquet_is_read_with_pyarrow_or_the_fix_is_named(self):
        python = shutil.which("python3", path=self.environment["PATH"])
        has_arrow = subprocess.run([python, "-c", "import pyarrow"], capture_output=True, check=False).returncode == 0
        if not has_arrow:
            (self.folder / "t.parquet").write_bytes(b"PAR1" + bytes(8) + b"PAR1")
            self.expect_error(4, ["t.parquet", "pyarrow", "pip install"], "tokenize", "t.parquet", "--tokenizer",
                              "tokenizer.json", "--output", "out")
            return
        program = ("import pyarrow, pyarrow.parquet as p; p.write_table(pyarrow.table({'id': [1, 2, 3, 4], 'body': "
                   "['the rain', 'in the\\u00e9', None, '']}), 't.parquet', row_group_size=2)")
        subprocess.run([python, "-c", program], cwd=self.folder, check=True)
        base = ["--tokenizer", "tokenizer.json"]
        self.expect_error(2, ["t.parquet", "no column of that name", "id, body"], "tokenize", "t.parquet", *base, "--output", "a")
        self.expect_error(2, ["t.parquet", "int64, not strings"], "tokenize", "t.parquet", *base, "--output", "b", "--field", "id")
        self.expect_error(2, ["t.parquet", "`body` is null"], "tokenize", "t.parquet", *base, "--output", "c", "--field", "body")
        found = self.tokenize("t.parquet", *base, "--output", "d", "--field", "body", "--on-bad", "skip")
        self.assertEqual((found["documents"], found["skipped"]), (3, 1))
        (self.folder / "t.jsonl").write_text('{"body": "the rain"}\n{"body": "in the\\u00e9"}\n{"body": ""}\n')
        self.tokenize("t.jsonl", *base, "--output", "e", "--field", "body")
        self.assertEqual(self.shards("d"), self.shards("e"))
        data = (self.folder / "t.parquet").read_bytes()
        (self.folder / "cut.parquet").write_bytes(data[:len(data) // 2])
        self.expect_error(2, ["cut.parquet", "cannot read"], "tokenize", "cut.parquet", *base, "--output", "f", "--field", "body")


if __name__ == "__main__":
    unittest.main()
