"""Stopping and going on: the losses after a resume are the undisturbed run's, bit for bit."""
import shutil

from harness import *


class Resume(EndToEnd):
    def interrupted_losses(self, job, after_steps):
        """Ctrl-C in the middle, then --resume; returns the losses of both parts and the step of the stop."""
        already = self.recorded_steps()
        process = self.start("train", job, "--json")
        wait_for(lambda: self.recorded_steps() >= already + after_steps, interval=0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130, out + err)
        first = json.loads(out.strip().splitlines()[-1])
        self.assertEqual(first["status"], "interrupted")
        second = self.train(job, "--resume")
        self.assertEqual(second["status"], "done")
        return self.losses(first["run"]), self.losses(second["run"]), first["steps"]

    def test_ctrl_c_then_resume_is_bit_identical(self):
        steps = 390  # the report keeps every point up to 400
        for seed in (1, 2, 3):
            with self.subTest(seed=seed):
                self.environment["LOCKSTEP_HOME"] = str(self.folder / f"clean-{seed}")
                job = self.text_job(ranks=2, seed=seed, steps=steps)
                undisturbed = self.losses(self.train(job)["run"])
                self.environment["LOCKSTEP_HOME"] = str(self.folder / f"stopped-{seed}")
                before, after, stopped_at = self.interrupted_losses(job, random.Random(seed).randrange(1, steps // 3))
                print(f"seed {seed}: stopped at step {stopped_at} of {steps}")
                self.assertLess(stopped_at, steps)
                self.assertFalse(set(before) & set(after))
                self.assertEqual({**before, **after}, undisturbed)

    def test_a_resume_on_more_ranks_sees_the_same_batches(self):
        folder = self.folder / "checkpoints"
        job = self.text_job(ranks=2, precision="fp64", checkpoint={"directory": str(folder), "every_steps": 10})
        whole = self.losses(self.train(job)["run"])
        for later in sorted(folder.glob("step-*"))[1:]:
            shutil.rmtree(later)
        first = sorted(folder.glob("step-*"))[0]
        wider = self.train(job, "--resume", folder, "cluster=1x4xcpu", "batch.micro=2")
        start = int(first.name.split("-")[1])
        after = self.losses(wider["run"])
        self.assertEqual(min(after), start + 1)
        for step, loss in after.items():
            self.assertAlmostEqual(loss, whole[step], delta=1e-9 * abs(whole[step]))

    def test_compressed_training_resumes_exactly(self):
        for compression in ("powersgd", "onebit", "bf16"):
            with self.subTest(compression=compression):
                folder = self.folder / compression
                job = self.text_job(ranks=2, communication={"compression": compression}, steps=24,
                                    checkpoint={"directory": str(folder), "every_steps": 8, "keep": 9})
                whole = self.losses(self.train(job)["run"])
                for later in sorted(folder.glob("step-*"))[1:]:
                    shutil.rmtree(later)
                after = self.losses(self.train(job, "--resume")["run"])
                self.assertEqual(after, {step: loss for step, loss in whole.items() if step > 8})

    def test_another_model_is_not_resumed(self):
        job = self.text_job(steps=4)
        self.train(job)
        wider = {"arch": "gpt", "layers": 1, "hidden": 32, "heads": 2, "vocab": 256, "max_sequence": 32}
        self.expect_error(2, ["another job", "model.layers 2, now 1"], "train", self.text_job(steps=8, model=wider),
                          "--resume")

    def test_a_finished_run_says_that_nothing_is_left(self):
        job = self.text_job(steps=4)
        self.train(job)
        done = self.run_lockstep("train", job, "--resume")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("nothing left to do: step 4 of 4", done.stdout)
        self.assertEqual(self.train(job, "--resume", "steps=6")["steps"], 6)

    def test_epochs_are_epochs_on_any_number_of_ranks(self):
        fields = {"epochs": 2, "checkpoint": {"directory": str(self.folder / "kept"), "every_steps": 40, "keep": 99}}
        job = self.text_job(ranks=2, **fields)
        text = json.loads(job.read_text())
        del text["steps"]
        job.write_text(json.dumps(text))
        whole = self.train(job)
        for later in sorted((self.folder / "kept").glob("step-*"))[1:]:
            shutil.rmtree(later)
        wide = [job, "--resume", self.folder / "kept", "cluster=1x4xcpu"]
        twice = self.train(*wide, "batch.on_resize=scale")
        half = -(-(whole["steps_total"] - 40) // 2)
        self.assertIn(twice["steps_total"] - 40, (half, half + 1))  # an epoch may end with a short step

    def test_a_used_checkpoint_folder_is_not_overwritten(self):
        job = self.text_job(steps=4, checkpoint={"directory": str(self.folder / "kept")})
        self.train(job)
        self.expect_error(2, ["already holds checkpoints", "--resume"], "train", job)

    def test_resume_without_a_checkpoint_says_so(self):
        self.expect_error(4, ["--resume", "no earlier run"], "train", self.text_job(), "--resume")

    def test_a_damaged_checkpoint_is_passed_over(self):
        folder = self.folder / "checkpoints"
        job = self.text_job(checkpoint={"directory": str(folder), "every": 0, "keep": 9},
                            optimizer={"kind": "adamw", "learning_rate": 2e-3, "schedule": "constant"})
        whole = self.losses(self.train(job, "steps=20")["run"])
        for steps in (30, 40):
            whole.update(self.losses(self.train(job, f"steps={steps}", "--resume")["run"]))
        newest = sorted(folder.glob("step-*"))[-2:]
        for checkpoint in newest:
            victim = checkpoint / "rank-00001.safetensors"
            data = bytearray(victim.read_bytes())
            data[len(data) // 2] ^= 1
            victim.write_bytes(data)
        after = self.losses(self.train(job, "--resume")["run"])
        self.assertEqual(after, {step: loss for step, loss in whole.items() if step > 20})


if __name__ == "__main__":
    unittest.main(verbosity=2)
