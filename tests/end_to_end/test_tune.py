"""A study of a job from beginning to end: trials are real runs of the engine, or priced."""
import json
import unittest

import harness

JOB = """model: {arch: gpt, name: tiny, layers: 1, hidden: 32, heads: 2, vocab: 256, max_sequence: 32}
cluster: 1x1xcpu
data: {kind: text, path: corpus, tokenizer: bytes}
batch: {micro: 1, accumulation: 8, sequence_length: 32}
steps: 8
tune:
  knobs:
    ranks: {choices: [1, 2]}
    micro_batch: {choices: [1, 2, 4, 8]}
    accumulation: {choices: [1, 2, 4, 8]}
    num_workers: {choices: [0, 1]}
  constraints: ["ranks * micro_batch * accumulation == 8"]
"""


class Tune(harness.EndToEnd):
    def setUp(self):
        super().setUp()
        (self.folder / "corpus").write_text("All work and no play makes a small corpus. " * 200)
        self.job = self.folder / "job.yaml"
        self.job.write_text(JOB)

    def study(self, *arguments, **options):
        done = self.run_lockstep("tune", *arguments, "--json", **options)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-4000:])
        return json.loads(done.stdout.strip().splitlines()[-1])

    def test_steps_are_reported_as_they_happen(self):
        done = self.run_lockstep("train", self.job, "steps=5", "--no-record", "--report-steps")
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        steps = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual([step["step"] for step in steps], [1, 2, 3, 4, 5])
        for step in steps:
            self.assertAlmostEqual(step["tokens_per_second"] * step["seconds"], 8 * 32, places=6)

    def test_a_study_of_a_job_runs_the_engine_and_leaves_no_run_behind(self):
        result = self.study(self.job, "--trials", 5, "--no-importance")
        self.assertEqual(result["schema"], "lockstep.study/1")
        self.assertEqual(result["trials"], 5)
        self.assertEqual(result["failed"], 0)
        config = result["best"]["config"]
        self.assertEqual(config["ranks"] * config["micro_batch"] * config["accumulation"], 8)
        self.assertGreater(result["best"]["estimate"], 0)
        # On processors nobody spends GPU-seconds.
        for verb in (("recipe", "last"), ("tune", "--show", "last")):
            said = self.run_lockstep(*verb).stdout
            self.assertRegex(said, r"\d rank-(s|minutes)\b")
            self.assertNotIn("GPU-", said)
        runs = self.folder / "home" / "runs"
        self.assertEqual(list(runs.iterdir()) if runs.exists() else [], [])

    def test_trials_leave_the_checkpoints_of_the_job_alone(self):
        self.job.write_text(JOB + f"checkpoint: {{directory: {self.folder / 'checkpoints'}}}\n")
        self.train(self.job)
        before = sorted(path.name for path in (self.folder / "checkpoints").iterdir())
        self.assertIn("step-00000008", before)
        self.assertEqual(self.study(self.job, "--trials", 3, "--no-importance")["failed"], 0)
        self.assertEqual(sorted(path.name for path in (self.folder / "checkpoints").iterdir()), before)

    def test_a_cluster_that_is_not_here_is_simulated(self):
        job = harness.SOURCE / "specs" / "jobs" / "7b-instruct.yaml"
        first = self.study(job, "--simulate", "--trials", 30)
        self.assertEqual(first["trials"], 30)
        self.assertGreater(first["best"]["estimate"], 50e3)
        again = self.study(job, "--simulate", "--trials", 30)
        self.assertEqual(first["best"], again["best"])


if __name__ == "__main__":
    unittest.main()
