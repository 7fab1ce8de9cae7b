"""Which run is this: ranks that mean different runs, runs that share a folder, checkpoints of other jobs."""
import shutil

from drills import *


class RanksOfOneRun(Drill):
    def refuse(self, first, second, pieces, job=None):
        """Two ranks with these overrides: both end with exit 2 and name what differs."""
        job = job or self.text_job(ranks=2, steps=4)
        for code, out, err in self.finish(self.start_ranks(job, first, second)):
            self.assertEqual(code, 2, out + err)
            for piece in pieces:
                self.assertIn(piece, err)

    def test_another_learning_rate_is_named_by_key_and_rank(self):
        self.refuse(["optimizer.learning_rate=1e-3"], ["optimizer.learning_rate=1e-1"],
                    ["rank 1 has optimizer.learning_rate 0.1", "rank 0 has 0.001"])

    def test_seed_dropout_and_batch_are_compared(self):
        self.refuse([], ["seed=4", "model.dropout=0.5", "optimizer.clip_norm=2"],
                    ["rank 1 has seed 4, rank 0 has 3", "model.dropout", "optimizer.clip_norm"])

    def test_other_bytes_in_the_data_are_found(self):
        job = self.text_job(ranks=2, steps=4)
        text = bytearray((self.folder / "text.txt").read_bytes())
        text[20000] ^= 1
        (self.folder / "other.txt").write_bytes(text)
        self.refuse([], [f"data.path={self.folder / 'other.txt'}"], ["rank 1 has data 1 file", "rank 0 has 1 file"], job)

    def test_the_same_data_elsewhere_is_the_same(self):
        job = self.text_job(ranks=2, steps=3)
        shutil.copy(self.folder / "text.txt", self.folder / "copy.txt")
        ranks = self.start_ranks(job, ["--json"], [f"data.path={self.folder / 'copy.txt'}", "loader.num_workers=2"])
        self.assertEqual([code for code, _, _ in self.finish(ranks)], [0, 0])


class OneFolderOneRun(Drill):
    def test_a_second_run_is_told_who_has_the_folder(self):
        job = self.text_job(ranks=2, steps=100000, checkpoint={"directory": str(self.folder / "ck"), "every_steps": 20})
        first = self.start("train", job, "name=first")
        wait_for(lambda: self.saved_steps(self.folder / "ck"))
        for arguments in ([], ["--resume"]):
            second = self.run_lockstep("train", job, "name=second", "seed=9", "steps=2000", *arguments)
            self.assertEqual(second.returncode, 4, second.stdout + second.stderr)
            self.assertRegex(second.stderr, r"run \S+-first \(process \d+ on .*is writing checkpoints there")
        first.send_signal(signal.SIGTERM)
        out, err = first.communicate(timeout=240)
        self.assertEqual(first.returncode, 130, out + err)

    def test_a_resume_does_not_adopt_a_run_that_lives(self):
        job = self.text_job(ranks=2, steps=100000, checkpoint={"every_steps": 20})
        first = self.start("train", job)
        wait_for(lambda: list((self.folder / "home").glob("runs/*/checkpoints/step-*")))
        second = self.run_lockstep("train", job, "--resume", "steps=2000")
        self.assertEqual(second.returncode, 4, second.stdout + second.stderr)
        self.assertIn("is writing checkpoints there", second.stderr)
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=240)

    def test_what_a_killed_run_left_is_taken_over(self):
        job = self.text_job(ranks=2, steps=100000, checkpoint={"directory": str(self.folder / "ck"), "every_steps": 5})
        first = self.start("train", job)
        wait_for(lambda: self.saved_steps(self.folder / "ck"))
        first.kill()
        first.communicate(timeout=60)
        newest = max(self.saved_steps(self.folder / "ck"))
        self.assertEqual(self.train(job, "--resume", f"steps={newest + 12}")["steps"], newest + 12)


class Resuming(Drill):
    def trained(self, **fields):
        job = self.text_job(ranks=2, steps=6, checkpoint={"directory": str(self.folder / "ck")}, **fields)
        self.train(job)
        return job

    def test_other_samples_need_accept_changes(self):
        job = self.trained()
        (self.folder / "b.txt").write_bytes((self.folder / "text.txt").read_bytes()[::-1])
        for change in ("seed=99", "data.shuffle=false", f"data.path={self.folder / 'b.txt'}"):
            with self.subTest(change=change):
                key = change.split("=")[0]
                self.expect_error(2, ["other samples would come", key, "--accept-changes"], "train", job, "--resume",
                                  "steps=8", change)
        done = self.run_lockstep("train", job, "--resume", "--accept-changes", "steps=8", "seed=99")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("seed 3, now 99", done.stdout)

    def test_other_changes_are_printed(self):
        job = self.trained()
        done = self.run_lockstep("train", job, "--resume", "steps=8", "optimizer.betas=[0.8, 0.9]", "batch.accumulation=1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("optimizer.betas [0.9, 0.999], now [0.8, 0.9]", done.stdout)
        self.assertIn("batch.accumulation 2, now 1", done.stdout)
        self.assertIn("a step has 8 samples now, 16 before", done.stdout)

    def test_data_that_moved_is_the_same_data(self):
        job = self.trained()
        shutil.move(self.folder / "text.txt", self.folder / "moved.txt")
        self.assertEqual(self.train(job, "--resume", "steps=8", f"data.path={self.folder / 'moved.txt'}")["steps"], 8)

    def test_a_run_is_not_found_by_its_name_alone(self):
        for name, seed in (("x", 1), ("y", 2)):
            (self.folder / name).mkdir()
            self.text_job(ranks=2, steps=4, seed=seed).rename(self.folder / name / "train.yaml")
        self.train(self.folder / "x" / "train.yaml")
        self.expect_error(2, ["the last run named `train`", "seed 1, now 2"], "train", self.folder / "y" / "train.yaml",
                          "steps=6", "--resume")
        self.assertEqual(self.train(self.folder / "x" / "train.yaml", "steps=6", "--resume")["steps"], 6)

    def test_auto_starts_and_goes_on_with_one_command_line(self):
        job = self.text_job(ranks=2, steps=6)
        directory = f"checkpoint.directory={self.folder / 'ck'}"
        self.assertEqual(self.train(job, directory, "--resume", "auto")["steps"], 6)
        again = self.run_lockstep("train", job, directory, "steps=9", "--resume", "auto")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("at step 6", again.stdout)

    def test_a_restart_by_a_launcher_goes_on(self):
        job = self.text_job(ranks=2, steps=100000, checkpoint={"directory": str(self.folder / "ck"), "every_steps": 5})
        ranks = self.start_ranks(job, ["--json"], ["--json"])
        wait_for(lambda: self.saved_steps(self.folder / "ck"))
        for rank in ranks:
            rank.kill()
        self.finish(ranks)
        newest = max(self.saved_steps(self.folder / "ck"))
        goal = f"steps={newest + 10}"
        ended = self.finish(self.start_ranks(job, ["--json", goal], ["--json", goal]))
        self.assertEqual([code for code, _, _ in ended], [0, 0], ended)
        self.assertIn(f"at step {newest}", ended[0][2])


if __name__ == "__main__":
    unittest.main(verbosity=2)
