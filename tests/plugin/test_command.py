"""The command line with plugins: one answer of plan, train and --dry-run, errors with their place, a crash that stays apart."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD_DIR"])
WAVES, ODD = BUILD / "tests" / "libwaves.so", BUILD / "tests" / "libodd.so"

WAVES_JOB = f"""model:
  plugin: {WAVES}
  arch: mixer
  loss: focal
  layers: 2
  width: 8
cluster: 1x1xcpu
data: {{plugin: {WAVES}, kind: waves, samples: 32, held_out: 8}}
batch: {{micro: 4}}
optimizer: {{kind: adamw, learning_rate: 1e-2, plugin: {WAVES}, schedule: inverse_power}}
evaluation: {{plugin: {WAVES}, metrics: [accuracy, top2]}}
steps: 4
layout: {{dp: 1}}
"""
ODD_JOB = f"""model: {{plugin: {ODD}, arch: odd}}
cluster: 1x1xcpu
data: {{plugin: {ODD}, kind: odd}}
batch: {{micro: 4}}
steps: 2
layout: {{dp: 1}}
"""


class Command(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-plugin-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        (cls.folder / "waves.yaml").write_text(WAVES_JOB)
        (cls.folder / "odd.yaml").write_text(ODD_JOB)

    def run_it(self, *words, expected=0):
        done = subprocess.run([BUILD / "lockstep", *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=900,
                              env={**os.environ, "LOCKSTEP_HOME": str(self.folder / "home")})
        self.assertEqual(done.returncode, expected, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done.stdout + (done.stderr if expected else "")

    def refused(self, *words, code=2):
        """The same sentence from train, its dry run and plan."""
        said = [self.run_it(*verb, *words, expected=code).strip().splitlines()[-1]
                for verb in (("train",), ("train", "--dry-run"), ("plan",))]
        self.assertEqual(len({line.removeprefix("lockstep: ") for line in said}), 1, said)
        return said[0]

    def test_it_trains_evaluates_exports_and_resumes_bit_for_bit(self):
        def train(name, *more):
            out = self.run_it("train", "waves.yaml", f"checkpoint={{directory: {name}}}", "--json", *more)
            return json.loads(out.strip().splitlines()[-1])

        straight = train("straight")
        train("stopped", "steps=2")
        resumed = train("stopped", "--resume")
        self.assertEqual(straight["final_loss"], resumed["final_loss"])
        for name in ("straight", "stopped"):
            self.run_it("checkpoint", "export", name, "--output", f"{name}-weights")
        files = [self.folder / f"{name}-weights" / "model.safetensors" for name in ("straight", "stopped")]
        self.assertEqual(files[0].read_bytes(), files[1].read_bytes())
        self.assertIn(b"layers.1.mix.weight", files[0].read_bytes())
        report = self.run_it("report", straight["run"])
        self.assertIn("top2", report)
        found = json.loads(self.run_it("evaluate", "straight", "--json").strip().splitlines()[-1])
        self.assertEqual(found["samples"], 8)
        self.assertGreaterEqual(found["top2"], found["accuracy"])
        self.assertLessEqual(found["top2"], 1.0)
        self.assertIn("top2", self.run_it("evaluate", "straight"))
        # The exported weights are as good: they know no data, and take the job's.
        of_folder = json.loads(self.run_it("evaluate", "straight-weights", "--job", "waves.yaml", "--json").strip().splitlines()[-1])
        self.assertEqual({key: of_folder[key] for key in ("loss", "accuracy", "top2")},
                         {key: found[key] for key in ("loss", "accuracy", "top2")})
        self.assertIn("--job JOB.yaml", self.run_it("evaluate", "straight-weights", expected=2))

    def test_a_model_that_is_not_ours_reads_windows_of_text(self):
        (self.folder / "text.txt").write_text("the lamb and the wolf walk in step. " * 60)
        (self.folder / "letters.yaml").write_text(f"""model: {{plugin: {ODD}, arch: letters, loss: cross_entropy}}
cluster: 1x2xcpu
data: {{kind: text, path: text.txt, tokenizer: bytes}}
batch: {{micro: 2, sequence_length: 16}}
steps: 3
layout: {{dp: 2}}
""")
        done = json.loads(self.run_it("train", "letters.yaml", "--json").strip().splitlines()[-1])
        self.assertEqual((done["status"], done["steps"]), ("done", 3))
        self.assertIn("batch.sequence_length", self.refused("letters.yaml", "batch={micro: 2}"))

    def test_a_plan_has_time_and_memory_of_it(self):
        plan = json.loads(self.run_it("plan", "waves.yaml", "cluster=1x1xH100", "--json"))  # priced without a calibration
        self.assertGreater(plan["best"]["prediction"]["step_seconds"], 0)
        self.assertGreater(plan["best"]["memory_gib"]["total"], 0)

    def test_a_wrong_key_is_named_with_its_place_and_the_nearest(self):
        (self.folder / "wrong.yaml").write_text(WAVES_JOB.replace("layers: 2", "layrs: 2"))
        self.assertIn("wrong.yaml:5:3: unknown key `layrs` in model; did you mean `layers`?", self.refused("wrong.yaml"))
        self.assertIn("data.noise", self.refused("waves.yaml", "data.noise=loud"))
        self.assertIn("`model.layers` is 0", self.refused("waves.yaml", "model.layers=0"))

    def test_a_missing_name_and_a_missing_file_are_refused(self):
        self.assertIn("has no model `mixr`; did you mean `mixer`?", self.refused("waves.yaml", "model.arch=mixr"))
        self.assertIn("has no dataset `wave`; did you mean `waves`?", self.refused("waves.yaml", "data.kind=wave"))
        self.assertIn("there is no plugin", self.refused("waves.yaml", "model.plugin=/no/such.so", code=4))

    def test_layouts_that_need_the_inside_are_refused_before_a_rank_starts(self):
        for layout in ("tp: 2", "cp: 2"):
            said = self.run_it("train", "waves.yaml", "cluster=1x2xcpu", f"layout={{{layout}}}", expected=2)
            self.assertIn("a model of a plugin, which hides them", said)

    def test_code_that_throws_names_the_plugin(self):
        self.assertIn("libodd.so: model `odd`: forward of unit `doing` failed: no such wave",
                      self.refused("odd.yaml", "model.doing=throws", code=1))
        self.assertIn("libodd.so: dataset `odd`: fetch failed: the disk is gone", self.refused("odd.yaml", "data.doing=throws", code=1))

    def test_code_that_crashes_does_not_take_the_command_along(self):
        said = self.refused("odd.yaml", "model.doing=crashes", code=1)
        self.assertIn("libodd.so ended with signal 11", said)

    def test_a_relative_path_starts_from_where_it_was_written(self):
        (self.folder / "jobs").mkdir(exist_ok=True)
        (self.folder / "jobs" / "relative.yaml").write_text(ODD_JOB.replace("kind: odd", "kind: odd, file: here.txt"))
        said = self.run_it("train", "jobs/relative.yaml")
        self.assertIn(f"odd data of {self.folder}/jobs/here.txt", said)
        said = self.run_it("train", "jobs/relative.yaml", "data.file=there.txt")
        self.assertIn(f"odd data of {self.folder}/there.txt", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
