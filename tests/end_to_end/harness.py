"""Drives the built `lockstep` as a user would: real processes, real files, a run store of its own per test."""
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import tempfile
import time
import unittest

BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD_DIR"])
SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
LOCKSTEP = str(BUILD / "lockstep")
# For classes that judge a time; CMake runs them by their names, as tests of their own with the label `timing`.
timing = unittest.skipUnless(os.environ.get("LOCKSTEP_TIMING"), "judges a time: ctest -L timing")
LAUNCHER_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class EndToEnd(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-e2e-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.environment = {k: v for k, v in os.environ.items()
                            if k not in LAUNCHER_VARIABLES and not k.startswith(("SLURM_", "OMPI_", "PMI"))}
        self.environment["LOCKSTEP_HOME"] = str(self.folder / "home")
        self.environment["OMPI_ALLOW_RUN_AS_ROOT"] = self.environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"

    # --- running -----------------------------------------------------------------------------------------------------
    def start(self, *arguments, prefix=(), environment=None, **options):
        return subprocess.Popen([*prefix, LOCKSTEP, *map(str, arguments)], cwd=self.folder, text=True,
                                env={**self.environment, **(environment or {})}, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, **options)

    def run_lockstep(self, *arguments, prefix=(), timeout=900, environment=None):
        process = self.start(*arguments, prefix=prefix, environment=environment)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            self.fail(f"lockstep {arguments} took more than {timeout} s\n{out[-3000:]}\n{err[-3000:]}")
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def train(self, job, *arguments, expect=0, **options):
        """Runs `train --json` and returns the last line's value."""
        done = self.run_lockstep("train", job, *arguments, "--json", **options)
        self.assertEqual(done.returncode, expect, f"exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def expect_error(self, code, pieces, *arguments, **options):
        """The command must fail with `code` and one line on stderr that holds every piece."""
        done = self.run_lockstep(*arguments, **options)
        lines = [line for line in done.stderr.splitlines() if line.startswith("lockstep: ")]
        self.assertEqual(done.returncode, code, done.stdout[-2000:] + done.stderr[-2000:])
        self.assertEqual(len(lines), 1, done.stderr)
        for piece in pieces:
            self.assertIn(piece, lines[0])
        return lines[0]

    def losses(self, run):
        """{step: loss} with every digit."""
        done = self.run_lockstep("report", run, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return {int(step): value for step, value, *_ in json.loads(done.stdout)["loss"]}

    def recorded_steps(self):
        """Steps that the run store has of its newest run by now; 0 while there is no store."""
        path = pathlib.Path(self.environment["LOCKSTEP_HOME"]) / "runs.db"
        try:
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5) as store:
                return store.execute("SELECT coalesce(max(steps), 0) FROM run_steps WHERE run = (SELECT max(number) FROM runs)"
                                     ).fetchone()[0]
        except sqlite3.OperationalError:
            return 0

    # --- jobs and data -----------------------------------------------------------------------------------------------
    def ranks_of(self, process, generation=1):
        """{rank: pid} once this generation has begun."""
        def look():
            for told in (self.folder / "home" / "runs").glob("*/ranks.json"):
                found = json.loads(told.read_text())
                if found["generation"] >= generation and self.is_child(found["pids"][0], process.pid):
                    return dict(enumerate(found["pids"]))
            return None
        return wait_for(look)

    @staticmethod
    def is_child(pid, parent):
        try:
            return int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]) == parent
        except (OSError, IndexError):
            return False

    def text_job(self, ranks=2, **fields):
        """A tiny byte-level GPT on seeded text; a step takes some milliseconds."""
        words = "the lamb and the wolf walk in step over the hill to the old mill by the river".split()
        rng = random.Random(5)
        text = self.folder / "text.txt"
        if not text.exists():  # never rewritten under a node that is reading it
            text.write_text(" ".join(rng.choice(words) for _ in range(6000)))
        job = {"model": {"arch": "gpt", "layers": 2, "hidden": 32, "heads": 2, "vocab": 256, "max_sequence": 32},
               "cluster": f"1x{ranks}xcpu", "data": {"kind": "text", "path": str(self.folder / "text.txt")},
               "batch": {"micro": 4, "accumulation": 2, "sequence_length": 32},
               "optimizer": {"kind": "adamw", "learning_rate": 2e-3, "schedule": "cosine", "warmup_steps": 5,
                             "clip_norm": 1.0},
               "steps": 40, "threads_per_rank": 1, "seed": 3}
        job.update(fields)
        return self.write_job("job.yaml", job)

    def write_job(self, name, job):
        """Whole or not at all: a node that was started may be reading the file of that name."""
        path = self.folder / name
        part = path.with_suffix(".part")
        part.write_text(json.dumps(job))  # JSON is YAML
        part.replace(path)
        return path

    def write_idx_mnist(self, train=512, test=128, seed=1):
        """A small learnable set in MNIST's own format."""
        folder = self.folder / "mnist"
        folder.mkdir(exist_ok=True)
        rng = random.Random(seed)
        for name, count in (("train", train), ("t10k", test)):
            labels = bytes(rng.randrange(10) for _ in range(count))
            images = bytearray()
            for label in labels:
                image = bytearray(rng.randrange(40) for _ in range(784))
                for row in range(28):
                    for column in range(2 * label + 2, 2 * label + 6):
                        image[28 * row + column] = 200 + rng.randrange(55)
                images += image
            (folder / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + bytes(images))
            (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels)
        return folder

    def mnist_job(self, ranks=2, **fields):
        job = {"model": "mnist-cnn", "cluster": f"1x{ranks}xcpu",
               "data": {"kind": "mnist", "path": str(self.folder / "mnist")}, "batch": {"micro": 32 // ranks},
               "optimizer": {"kind": "sgd", "learning_rate": 0.05, "momentum": 0.9}, "epochs": 1, "seed": 1,
               "threads_per_rank": 1}
        job.update(fields)
        return self.write_job(f"mnist-{ranks}.yaml", job)


class SeveralNodes(EndToEnd):
    """Nodes are agents on ports of this machine; killing an agent ends the ranks of its node with it."""

    def setUp(self):
        super().setUp()
        self.agents = {}

    def begin(self, job, nodes):
        self.addresses = ",".join(f"127.0.0.1:{free_port()}" for _ in range(nodes))
        self.environment["LOCKSTEP_TOKEN"] = "of this test"
        for node in range(nodes):
            self.agents[node] = self.agent(job, node)

    def agent(self, job, node):
        process = self.start("launch", job, "--json", "--nodes", self.addresses, "--node", node)
        self.addCleanup(self.kill, process)
        return process

    @staticmethod
    def kill(process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def world(self, generation):
        """Nodes by rank, once this generation has begun."""
        def look():
            for told in (self.folder / "home" / "runs").glob("*/node-*/ranks.json"):
                found = json.loads(told.read_text())
                if found["generation"] == generation:
                    return found["nodes"]
            return None
        return wait_for(look)

    def ends(self, lost=()):
        """The result, from the agent that led at the end; every agent that was not lost ends well."""
        result = None
        for node, process in self.agents.items():
            out, err = process.communicate(timeout=900)
            if node in lost:
                continue
            self.assertEqual(process.returncode, 0, f"node {node}\n{out}\n{err}")
            if out.strip():
                result = json.loads(out.strip().splitlines()[-1])
        self.assertIsNotNone(result)
        return result

    def assert_same_losses(self, mine, other, places=4):
        """What the process that recorded them had not written yet when it was killed is missing."""
        mine, other = self.losses(mine), self.losses(other)
        self.assertEqual(max(mine), max(other))
        self.assertGreater(len(mine), 0.8 * len(other))
        for step, loss in mine.items():
            self.assertAlmostEqual(loss, other[step], places=places, msg=f"step {step}")


def rank_processes(parent, variable=b"LOCKSTEP_RANK"):
    """{rank: pid} of the rank processes below `parent`."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            variables = (entry / "environ").read_bytes().split(b"\0")
        except (OSError, IndexError):
            continue
        if int(fields[1]) == parent:
            for one in variables:
                if one.startswith(variable + b"="):
                    found[int(one.split(b"=")[1])] = int(entry.name)
    return found


def wait_for(condition, timeout=600, interval=0.05):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(interval)
    raise AssertionError("condition did not come true in time")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


__all__ = ["EndToEnd", "SeveralNodes", "rank_processes", "timing", "wait_for", "free_port", "LOCKSTEP", "SOURCE", "BUILD", "signal", "json",
           "random", "time", "unittest"]
