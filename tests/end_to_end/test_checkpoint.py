"""`lockstep checkpoint`: looks at what a run saved, checks it, writes it anew; and what a run does about its folder."""
import json
import unittest

import harness
from harness import EndToEnd


class Checkpoint(EndToEnd):
    def setUp(self):
        super().setUp()
        self.saved = self.folder / "checkpoints"
        self.job = self.text_job(ranks=2, steps=6, precision="fp64", communication={"backend": "local"},
                                 layout={"shard": 2, "zero": 3},
                                 checkpoint={"directory": str(self.saved), "every_steps": 3, "keep": 9})

    def tool(self, *arguments, expect=0):
        done = self.run_lockstep("checkpoint", *arguments, "--json")
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return json.loads(done.stdout)

    def test_inspect_tells_step_layout_and_the_pieces_of_every_rank(self):
        self.train(self.job)
        info = self.tool("inspect", self.saved)
        self.assertEqual((info["schema"], info["step"], info["world"], info["format"]),
                         ("lockstep.checkpoint_info/1", 6, 2, 2))
        self.assertIn("shard=2", info["layout"])
        first, second = info["ranks"]
        self.assertGreater(min(first["pieces"], second["pieces"]), 5)
        self.assertAlmostEqual(first["model_bytes"], second["model_bytes"], delta=0.05 * first["model_bytes"])
        text = self.run_lockstep("checkpoint", "inspect", self.saved)
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertIn("step      6", text.stdout)

    def test_verify_names_a_flipped_byte_in_any_file(self):
        self.train(self.job)
        newest = self.saved / "step-00000006"
        self.assertTrue(self.tool("verify", newest)["sound"])
        for victim in sorted(newest.iterdir()):
            sound = victim.read_bytes()
            damaged = bytearray(sound)
            damaged[len(damaged) // 2] ^= 1
            victim.write_bytes(damaged)
            found = self.tool("verify", newest, expect=3)
            self.assertEqual(found["damage"][0]["file"], victim.name)
            victim.write_bytes(sound)
        self.assertTrue(self.tool("verify", newest)["sound"])

    def test_a_resharded_checkpoint_goes_on_with_the_same_losses(self):
        whole = self.losses(self.train(self.job)["run"])
        first = self.saved / "step-00000003"
        for goal in (["--layout", "tp=2"], ["--whole"]):
            output = self.folder / ("new" + goal[0])
            made = self.tool("reshard", first, *goal, "--output", output)
            self.assertEqual(made["world"], 2 if "--layout" in goal else 1)
            self.assertTrue(self.tool("verify", output)["sound"])
            after = self.losses(self.train(self.job, "--resume", output, "layout.shard=1", "layout.zero=0",
                                           "layout.tp=2", "batch.micro=8")["run"])
            self.assertEqual(sorted(after), [4, 5, 6])
            for step, loss in after.items():
                self.assertAlmostEqual(loss, whole[step], delta=1e-9 * abs(whole[step]))

    def test_export_writes_what_train_exports(self):
        self.train(self.job, "--export", self.folder / "by-train")
        self.tool("export", self.saved, "--output", self.folder / "by-checkpoint")
        for name in ("config.json", "model.safetensors"):
            self.assertEqual((self.folder / "by-checkpoint" / name).read_bytes(),
                             (self.folder / "by-train" / name).read_bytes(), name)

    def test_restarts_leave_one_pinned_checkpoint(self):
        kept = self.folder / "kept"
        job = self.text_job(ranks=1, steps=1, checkpoint={"every_steps": 10, "keep": 2, "directory": str(kept)})
        for steps in (300, 600, 900):  # many, so that some are durable long before the end on a slow disk, too
            self.train(job, f"steps={steps}", "--resume", "auto")
            self.assertEqual(len(list(kept.glob("step-*/pinned"))), 1, steps)
        self.assertLessEqual(len(list(kept.glob("step-*"))), 3)

    def test_bad_paths_are_one_line_and_nothing_is_overwritten(self):
        self.train(self.job)
        self.expect_error(2, ["there is no checkpoint"], "checkpoint", "inspect", self.folder / "nowhere")
        self.expect_error(2, ["not an empty folder"], "checkpoint", "export", self.saved, "--output", self.folder)
        self.expect_error(2, ["--layout", "--whole"], "checkpoint", "reshard", self.saved, "--output",
                          self.folder / "new")

    def test_a_folder_that_cannot_be_written_ends_the_run_before_a_step(self):
        (self.folder / "file").write_text("not a folder")
        self.expect_error(4, ["cannot create the folder", "file/inside"], "train", self.job,
                          f"checkpoint.directory={self.folder / 'file' / 'inside'}", "--backend", "gloo")

    def test_an_old_checkpoint_is_read_by_all_of_it(self):
        old = harness.SOURCE / "tests/checkpoint/format-1/step-00000003"
        self.assertEqual(self.tool("inspect", old)["format"], 1)
        self.assertTrue(self.tool("verify", old)["sound"])
        self.tool("reshard", old, "--whole", "--output", self.folder / "new")
        self.assertEqual(self.tool("inspect", self.folder / "new")["format"], 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
