"""Checkpoints that lie, lack a part, or are not of this job: one line that names the place, and nothing is overwritten."""
import hashlib
import shutil

from drills import *


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def contents(folder):
    """{path: digest} of every file below, but for the lease and locks."""
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(pathlib.Path(folder).rglob("*")) if path.is_file() and path.name not in (".lease", ".lock")}


class Forged(Drill):
    def setUp(self):
        super().setUp()
        self.checkpoints = self.folder / "ck"
        self.job = self.text_job(ranks=2, steps=6, communication={"backend": "local"},
                                 optimizer={"kind": "adamw", "learning_rate": 2e-3},
                                 checkpoint={"directory": str(self.checkpoints), "every_steps": 3, "keep": 9})
        self.train(self.job)
        self.newest = self.checkpoints / "step-00000006"

    def forge(self, change):
        """Changes the newest manifest and seals it anew, as somebody would who knows the format."""
        path = self.newest / "manifest.json"
        value = json.loads(path.read_text())
        del value["crc32c"]
        change(value)
        body = json.dumps(value, separators=(",", ":"))[:-1]
        path.write_text(f'{body},"crc32c":"{crc32c(body.encode()):08x}"}}\n')

    def resumed(self):
        """The step that a resume goes on from, and what it said."""
        done = self.run_lockstep("train", self.job, "--resume", "steps=7", "checkpoint.every_steps=0", "checkpoint.final=false")
        said = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, said)
        self.assertNotIn("internal error", said)
        self.assertNotIn("json.exception", said)
        return min(self.losses("last")) - 1, said

    def falls_back(self, change):
        sound = (self.newest / "manifest.json").read_text()
        self.forge(change)
        step, said = self.resumed()
        self.assertEqual(step, 3, said)
        self.assertIn("step-00000006", said)
        (self.newest / "manifest.json").write_text(sound)

    def test_the_seal_of_the_tests_is_the_products(self):
        self.forge(lambda manifest: None)
        self.assertEqual(self.resumed()[0], 6)

    def test_a_loader_of_the_wrong_type_is_passed_over(self):
        for lie in ([], 7, {"epoch": "one"}):
            with self.subTest(lie=lie):
                self.falls_back(lambda manifest, lie=lie: manifest.update(loader=lie))

    def test_extra_facts_of_the_wrong_type_are_passed_over(self):
        for lie in ([1], {"layout": 5, "run": [], "usual_losses": "none"}):
            with self.subTest(lie=lie):
                self.falls_back(lambda manifest, lie=lie: manifest.update(extra=lie))

    def test_a_lying_step_world_or_size_is_passed_over(self):
        def size(manifest):
            manifest["files"]["rank-00000.json"]["bytes"] = -1
        for change in (lambda manifest: manifest.update(step=5), lambda manifest: manifest.update(world=3),
                       lambda manifest: manifest.update(job=5), size):
            self.falls_back(change)

    def test_a_missing_shard_is_named_and_passed_over(self):
        (self.newest / "rank-00001.safetensors").unlink()
        step, said = self.resumed()
        self.assertEqual(step, 3)
        self.assertIn("rank-00001.safetensors", said)

    def test_without_an_older_one_it_is_one_line_and_nothing_is_overwritten(self):
        shutil.rmtree(self.checkpoints / "step-00000003")
        (self.newest / "rank-00001.safetensors").unlink()
        before = contents(self.checkpoints)
        done = self.run_lockstep("train", self.job, "--resume", "steps=7")
        self.assertEqual(done.returncode, 4, done.stdout + done.stderr)
        self.assertIn("rank-00001.safetensors", done.stdout + done.stderr)
        line, = [text for text in done.stderr.splitlines() if text.startswith("lockstep: ")]
        self.assertIn(f"no checkpoint is sound in {self.checkpoints}", line)
        self.assertEqual(contents(self.checkpoints), before)

    def test_the_checkpoint_of_another_model_is_refused_and_left_alone(self):
        wider = {"arch": "gpt", "layers": 1, "hidden": 32, "heads": 2, "vocab": 256, "max_sequence": 32}
        job = self.text_job(ranks=2, steps=8, model=wider, communication={"backend": "local"})
        before = contents(self.checkpoints)
        for arguments in (["--resume", self.checkpoints], [f"checkpoint.directory={self.checkpoints}", "--resume", "auto"]):
            self.expect_error(2, ["model.layers 2, now 1"], "train", job, *arguments)
        self.assertEqual(contents(self.checkpoints), before)

    def test_a_folder_with_something_else_is_said_to_have_no_checkpoint(self):
        other = self.folder / "letters"
        (other / "step-00000009").mkdir(parents=True)
        (other / "step-00000009" / "letter.txt").write_text("dear diary")
        before = contents(other)
        self.expect_error(4, ["letters", "no sound checkpoint"], "train", self.job, "--resume", other, "steps=8")
        self.assertEqual(contents(other), before)

    def test_what_is_not_a_checkpoint_is_not_rotated_out(self):
        strange = self.folder / "mixed"
        (strange / "step-notes").mkdir(parents=True)
        (strange / "step-notes" / "letter.txt").write_text("dear diary")
        (strange / "step-00000001").mkdir()
        (strange / "step-00000001" / "mine.txt").write_text("dear diary")
        before = contents(strange)
        self.run_lockstep("train", self.job, f"checkpoint.directory={strange}", "checkpoint.keep=1", "checkpoint.every_steps=2")
        left = contents(strange)
        self.assertEqual({path: left.get(path) for path in before}, before)


if __name__ == "__main__":
    unittest.main(verbosity=2)
