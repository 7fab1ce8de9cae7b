"""Numbers that go wrong: no good checkpoint is lost to them, and none is called a result."""
from drills import *


class Health(Drill):
    def diverging(self, **fields):
        job = {"ranks": 2, "optimizer": {"kind": "sgd", "learning_rate": 1e-2}, "steps": 30,
               "checkpoint": {"directory": str(self.folder / "ck"), "every_steps": 10, "keep": 3}}
        return self.text_job(**{**job, **fields})

    def test_the_last_sound_checkpoint_outlives_a_divergence(self):
        job = self.diverging()
        self.train(job)
        failed = self.run_lockstep("train", job, "--resume", "checkpoint.every_steps=1", "steps=200",
                                   "optimizer.learning_rate=1e3", "optimizer.clip_norm=0")
        self.assertEqual(failed.returncode, 1, failed.stdout + failed.stderr)
        self.assertIn("not finite", failed.stderr)
        self.assertIn(30, self.saved_steps(self.folder / "ck"))
        newer = [step for step in self.saved_steps(self.folder / "ck") if step > 30]
        healed = self.run_lockstep("train", job, "--resume", "steps=40")
        self.assertEqual(healed.returncode, 0, healed.stderr)
        if newer:  # a slow disk may not have had the time to write one
            self.assertIn("set aside", healed.stdout)
        self.assertIn("at step 30", healed.stdout)
        losses = self.losses("last")
        self.assertEqual(sorted(losses), list(range(31, 41)))
        self.assertLess(max(losses.values()), 10)

    def test_a_run_that_ends_while_steps_are_skipped_has_failed(self):
        job = self.diverging(steps=9, optimizer={"kind": "sgd", "learning_rate": 100})
        done = self.run_lockstep("train", job, "--export", self.folder / "out", "--json")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(json.loads(done.stdout.strip().splitlines()[-1])["status"], "failed")
        self.assertFalse((self.folder / "out").exists())
        self.assertTrue(self.events("skip"))

    def test_a_loss_that_jumps_is_an_event(self):
        job = self.text_job(ranks=2, steps=60, optimizer={"kind": "adamw", "learning_rate": 1e-3})
        first = self.train(job, "steps=30")
        self.assertEqual(self.events("spike"), [])
        done = self.run_lockstep("train", job, "--resume", "optimizer.learning_rate=3")
        self.assertIn("was usual", done.stdout)
        self.assertTrue(self.events("spike"), first)

    def test_stop_ends_the_run_at_the_first_gradient_that_is_not_finite(self):
        job = self.diverging(optimizer={"kind": "sgd", "learning_rate": 100}, health={"nonfinite": "stop"})
        done = self.run_lockstep("train", job)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stderr, r"the gradient was not finite in step \d+;")

    def test_evaluation_counts_the_same_samples_under_every_layout(self):
        losses = []
        for ranks, micro, accumulation in ((1, 16, 1), (2, 4, 2), (4, 4, 1)):
            job = self.text_job(ranks=ranks, steps=2, precision="fp64", evaluation={"batches": 2},
                                batch={"micro": micro, "accumulation": accumulation, "sequence_length": 32})
            result = self.train(job)["evaluations"][-1]
            self.assertEqual(result["targets"], 2 * 16 * 32)
            losses.append(result["loss"])
        for loss in losses[1:]:
            self.assertAlmostEqual(loss, losses[0], delta=1e-9)


if __name__ == "__main__":
    unittest.main(verbosity=2)
