"""What a run leaves in the store: metrics of every rank that add up, spans, usage of the node; and what is said of a hang."""
import os

from harness import *

PARTS = ("data_seconds", "compute_seconds", "comm_seconds", "optimizer_seconds", "checkpoint_seconds", "host_seconds")


class Recording(EndToEnd):
    def store(self):
        path = pathlib.Path(self.environment["LOCKSTEP_HOME"]) / "runs.db"
        return sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)

    def values(self, name):
        """{(rank, step): value} of the newest run."""
        with self.store() as store:
            rows = store.execute("SELECT rank, step, value FROM metrics WHERE run = (SELECT max(number) FROM runs) AND "
                                 "name = (SELECT number FROM names WHERE name = ?)", (name,)).fetchall()
        return {(rank, step): value for rank, step, value in rows}

    def events(self, kind):
        with self.store() as store:
            rows = store.execute("SELECT message, data FROM events WHERE run = (SELECT max(number) FROM runs) AND "
                                 "kind = ?", (kind,)).fetchall()
        return [(message, json.loads(data)) for message, data in rows]

    def test_phases_of_every_rank_add_up_and_the_node_is_watched(self):
        job = self.text_job(ranks=4, steps=30, layout={"pp": 2, "tp": 2}, checkpoint={"every_steps": 10})
        self.train(job, environment={"LOCKSTEP_NVML": str(BUILD / "tests" / "fake_nvml" / "libfake_nvml.so")})
        steps = self.values("step_seconds")
        self.assertEqual(len(steps), 4 * 30)
        parts = [self.values(name) for name in PARTS]
        for key, seconds in steps.items():
            self.assertAlmostEqual(sum(part[key] for part in parts), seconds, places=6, msg=str(key))
        for rank in range(4):
            self.assertGreater(sum(self.values("comm_seconds")[rank, step] for step in range(1, 31)), 0)
            self.assertGreater(sum(self.values("checkpoint_seconds")[rank, step] for step in range(1, 31)), 0)
            self.assertGreater(self.values("cpu_seconds")[rank, 5], 0)
        for name in ("node_cpu_percent", "node_available_bytes", "node_disk_free_bytes"):
            self.assertEqual({rank for rank, _ in self.values(name)} - {0}, set(), name)
        self.assertTrue(self.values("node_available_bytes"))

    def hang(self, chaos, **fields):
        job = self.text_job(ranks=4, steps=12, **fields)
        done = self.run_lockstep("train", job, "--chaos", chaos)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-4000:])
        told = [line for line in (done.stdout + done.stderr).splitlines() if "hang: " in line]
        self.assertEqual(len(told), 1, done.stdout[-4000:] + done.stderr[-4000:])
        (message, data), = self.events("hang")
        self.assertIn(message, told[0])
        return message, data

    def test_a_stopped_rank_is_named_with_the_collective_that_the_others_are_in(self):
        message, data = self.hang("freeze rank=2 step=6", recovery={"silence": "5s"})
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

    def test_a_rank_that_never_enters_a_collective_is_named(self):
        message, data = self.hang("hang rank=1 step=6", communication={"timeout": "6s"})
        self.assertEqual(data["missing"], [1])
        self.assertIn("rank 1 is missing", message)
        self.assertIn("in host of step 6", data["ranks"][1]["where"])
        self.assertIn("stack of thread", data["ranks"][1]["stack"])


if __name__ == "__main__":
    unittest.main()
