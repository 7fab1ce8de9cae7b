"""Rollbacks, skipped updates, and steps that keep their samples when the ranks change."""
import shutil

from drills import *


class Numbers(Drill):
    def jumping(self, **health):
        """A run that diverges: AdamW with a learning rate that is far too high."""
        return self.text_job(ranks=2, steps=60, optimizer={"kind": "adamw", "learning_rate": 1e-3}, health=health,
                             checkpoint={"directory": str(self.folder / "ck"), "every_steps": 30})

    def test_rollbacks_are_recorded_and_bounded(self):
        job = self.jumping(spike="rollback", rollback_steps=4, max_rollbacks=2)
        self.train(job, "steps=30")
        done = self.run_lockstep("train", job, "--resume", "optimizer.learning_rate=3")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stderr, r"the loss rose to .* by step \d+, .* after 2 rollbacks")
        self.assertEqual(len(self.events("rollback")), 2)
        self.assertRegex(done.stdout, r"back to step \d+, without the \d+ samples since \(1 of 2 rollbacks\)")

    def test_updates_of_high_losses_are_skipped_on_all_ranks_alike(self):
        job = self.jumping(spike="skip", skip_limit=3)
        self.train(job, "steps=30")
        done = self.run_lockstep("train", job, "--resume", "optimizer.learning_rate=3")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("3 steps in a row were skipped for their loss or gradient", done.stderr)
        self.assertEqual(len(self.events("skip")), 2)
        self.assertFalse(self.events("replicas"))

    def test_replicas_are_compared_and_the_cost_is_told(self):
        job = self.text_job(ranks=2, steps=6, health={"replica_check_every": 2})
        done = self.run_lockstep("train", job)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"replicas agree after step 2: \d+ tensors \(.*\) compared in")
        self.assertEqual(self.train(job)["replica_checks"], 3)
        self.assertEqual(self.train(job, "health.replica_check_every=0")["replica_checks"], 0)


class BatchOfTheRun(Drill):
    def saved(self, ranks, **fields):
        folder = self.folder / "ck"
        job = self.text_job(ranks=ranks, precision="fp64", steps=12,
                            **{"checkpoint": {"directory": str(folder), "every_steps": 4, "keep": 9},
                               "batch": {"micro": 2, "accumulation": 1, "sequence_length": 32}, **fields})
        whole = self.losses(self.train(job)["run"])
        for later in sorted(folder.glob("step-*"))[1:]:
            shutil.rmtree(later)
        return job, whole

    def test_fewer_ranks_keep_the_samples_of_a_step(self):
        job, whole = self.saved(4)
        done = self.run_lockstep("train", job, "--resume", "cluster=1x3xcpu")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("4 data ranks before, 3 now: a step keeps its 8 samples, in 2 micro-steps", done.stdout)
        after = self.losses("last")
        self.assertEqual(sorted(after), list(range(5, 13)))
        for step, loss in after.items():
            self.assertAlmostEqual(loss, whole[step], delta=1e-9)

    def test_a_scaled_batch_is_asked_for_and_scales_the_learning_rate(self):
        job, _ = self.saved(4)
        done = self.run_lockstep("train", job, "--resume", "cluster=1x2xcpu", "batch.on_resize=scale")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("a step has 4 samples instead of 8, learning rate x 0.5", done.stdout)

    def test_a_warm_up_of_the_batch_is_shown_and_resumes(self):
        batch = {"micro": 2, "accumulation": 2, "sequence_length": 32,
                 "schedule": [{"until": "3 steps", "accumulation": 1}, {"until": "1k tokens", "global": 6}]}
        job, whole = self.saved(2, batch=batch)
        shown = self.run_lockstep("train", job, "--dry-run")
        self.assertIn("samples of a step: 4 until step 3, then 6 until 32 samples, then 8", shown.stdout)
        after = self.losses(self.train(job, "--resume", "cluster=1x3xcpu")["run"])
        for step, loss in after.items():
            self.assertAlmostEqual(loss, whole[step], delta=1e-9)

    def test_a_batch_that_contradicts_itself_is_refused(self):
        for batch, pieces in (({"micro": 4, "global": 6}, ["6 samples of a step do not divide into micro-batches of 4"]),
                              ({"global": 4, "accumulation": 2}, ["keep one of them"]),
                              ({"schedule": [{"until": 5, "global": 4}]}, ["`5` does not say what it counts", "100 steps"]),
                              ({"schedule": [{"until": "5 steps"}]}, ["one of accumulation and global"]),
                              ({"schedule": [{"until": "5 steps", "global": 4}, {"until": "2 steps", "global": 8}]},
                               ["ends before it begins"]),
                              ({"global": 4, "on_resize": "scale"}, ["use accumulation to scale"])):
            with self.subTest(batch=batch):
                self.expect_error(2, pieces, "train", self.text_job(batch=batch))


if __name__ == "__main__":
    unittest.main(verbosity=2)
