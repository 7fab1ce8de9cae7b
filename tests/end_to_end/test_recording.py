"""What a run leaves behind: metrics of every rank that add up, spans that match, usage of the node, and what is said of a hang.

Another program holds the store's lock meanwhile, so the run is recorded in JSON lines, with a warning."""
import collections
import json
import pathlib
import sqlite3
import unittest

from harness import BUILD, EndToEnd, timing

PARTS = ("data_seconds", "compute_seconds", "comm_seconds", "optimizer_seconds", "checkpoint_seconds", "host_seconds")
FAKE_NVML = BUILD / "tests" / "fake_nvml" / "libfake_nvml.so"


class RecordedRuns(EndToEnd):
    def setUp(self):
        super().setUp()
        self.home = pathlib.Path(self.environment["LOCKSTEP_HOME"])
        self.train(self.text_job(ranks=1, steps=1))  # makes the store
        self.before = set(self.home.glob("runs/*"))
        lock = sqlite3.connect(self.home / "runs.db", isolation_level=None)
        self.addCleanup(lock.close)
        lock.execute("BEGIN IMMEDIATE")

    def records(self, kind):
        for path in sorted(self.home.glob("runs/*/*.jsonl")):
            if path.parent in self.before:
                continue
            for line in path.read_text().splitlines():
                record = json.loads(line)
                if record["type"] == kind:
                    yield record

    def metrics(self):
        """{name: {(rank, step): value}}"""
        values = collections.defaultdict(dict)
        for record in self.records("metrics"):
            for name, value in record["values"].items():
                values[name][record["rank"], record["step"]] = value
        return values

    def hang(self, chaos, **fields):
        job = self.text_job(ranks=4, steps=12, **fields)
        done = self.run_lockstep("train", job, "--chaos", chaos)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-4000:])
        told = [line for line in (done.stdout + done.stderr).splitlines() if "hang: " in line]
        self.assertEqual(len(told), 1, done.stdout[-4000:] + done.stderr[-4000:])
        event, = (record for record in self.records("event") if record["kind"] == "hang")
        self.assertIn(event["message"], told[0])
        return event["message"], event["data"]


class Recording(RecordedRuns):
    def test_phases_add_up_spans_match_and_a_locked_store_is_told(self):
        job = self.text_job(ranks=4, steps=30, layout={"pp": 2, "tp": 2}, checkpoint={"every_steps": 10})
        done = self.run_lockstep("train", job, environment={"LOCKSTEP_NVML": str(FAKE_NVML)})
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertEqual(done.stderr.count("goes on in"), 1, done.stderr)
        metrics = self.metrics()
        self.assertEqual(len(metrics["step_seconds"]), 4 * 30)
        for key, seconds in metrics["step_seconds"].items():
            self.assertAlmostEqual(sum(metrics[part][key] for part in PARTS), seconds, places=6, msg=str(key))
        steps = range(1, 31)
        for rank in range(4):
            self.assertGreater(sum(metrics["comm_seconds"][rank, step] for step in steps), 0)
            self.assertGreater(sum(metrics["checkpoint_seconds"][rank, step] for step in steps), 0)
            self.assertGreater(sum(metrics["cpu_seconds"][rank, step] for step in steps), 0)
        for name in ("node_available_bytes", "node_disk_free_bytes"):
            # The first rank that is there tells them: rank 0, until it ends a moment before the others.
            self.assertIn(0, {rank for rank, _ in metrics[name]}, name)
            self.assertEqual(len({step for _, step in metrics[name]}), len(metrics[name]), name)
        self.assertEqual({rank for rank, _ in metrics["gpu_clock_ratio"]}, {0, 1}, "of the two GPUs that the fake has")
        self.expect_matching_collectives()

    def expect_matching_collectives(self):
        members = collections.defaultdict(set)
        for batch in self.records("spans"):
            names = batch["names"]
            for kind, _, _, _, *rest in batch["spans"]:
                name, group, _, sequence = (rest + [None] * 4)[:4]
                if kind != "collective" or names[group].startswith("snapshots"):  # those go on beyond their step
                    continue
                if names[name].split()[0] not in ("send", "recv"):
                    members[names[group], sequence].add(batch["rank"])
        for (group, sequence), ranks in members.items():
            self.assertEqual(len(ranks), 4 if group.startswith("world") else 2, (group, sequence))
        self.assertGreater(len(members), 100)

    def test_a_stopped_rank_is_named_with_the_collective_that_the_others_are_in(self):
        message, data = self.hang("freeze rank=2 step=6", recovery={"silence": "15s"})
        self.assertEqual(data["missing"], [2])
        self.assertIn("rank 2 is missing", message)
        self.assertIn("all_reduce", data["collective"])
        self.assertGreater(data["sequence"], 0)
        self.assertEqual([one["rank"] for one in data["ranks"]], [0, 1, 2, 3])
        self.assertIn("state T", data["ranks"][2]["stack"])
        self.assertIn("no sign of life", data["ranks"][2]["where"])
        for rank in (0, 1, 3):
            self.assertIn("all_reduce", data["ranks"][rank]["where"])
            self.assertIn("stack of thread", data["ranks"][rank]["stack"])


@timing
class HangTiming(RecordedRuns):
    def test_a_rank_that_never_enters_a_collective_is_named(self):
        message, data = self.hang("hang rank=1 step=6", communication={"timeout": "10s"})
        self.assertEqual(data["missing"], [1])
        self.assertIn("rank 1 is missing", message)
        self.assertIn("in host of step 6", data["ranks"][1]["where"])
        self.assertIn("stack of thread", data["ranks"][1]["stack"])


if __name__ == "__main__":
    unittest.main()
