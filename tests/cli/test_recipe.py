"""`lockstep recipe` as a user runs it, on studies of a small worker. Needs no engine."""
import json
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "end_to_end"))
from harness import EndToEnd  # noqa: E402

SPACE = """
knobs:
  MODE: {choices: ["plain", "it's fast"], default: plain}
  micro: {choices: [1, 2, 4], default: 1}
  idle: {int: [0, 3], default: 0}
"""
# A program of the user's. How much faster its settings are is written in a file, so that a test can change the world.
SCRIPT = """
import os, pathlib, sys
gain = float((pathlib.Path(__file__).parent / "gain").read_text())
micro, mode = int(sys.argv[1]), os.environ["MODE"]
if gain < 0 and mode != "plain": sys.exit("torch.cuda.OutOfMemoryError: CUDA out of memory")
rate = 1000 * (1 + gain * (micro - 1) / 3) * (1 + (gain / 2 if mode == "it's fast" else 0))
noise = int(os.environ.get("LOCKSTEP_TRIAL", 0)) * 7919 % 101 / 101 * 0.01
for step in range(4): print("tokens_per_second:", rate * (1 + noise))
"""


class Recipe(EndToEnd):
    def setUp(self):
        super().setUp()
        self.work = self.folder / "work"
        self.work.mkdir()
        (self.work / "space.yaml").write_text(SPACE)
        (self.work / "train.py").write_text(SCRIPT)
        self.set_gain(0.5)

    def tune(self, trials):
        command = f"{sys.executable} {self.work / 'train.py'} {{micro}}"
        done = self.run_lockstep("tune", "--space", self.work / "space.yaml", "--command", command, "--trials", trials,
                                 "--name", "small", "--json", timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        return json.loads(done.stdout.strip().splitlines()[-1])

    def set_gain(self, gain):
        (self.work / "gain").write_text(str(gain))

    def recipe(self, *arguments, expect=0):
        done = self.run_lockstep("recipe", "last", *arguments, timeout=120)
        self.assertEqual(done.returncode, expect, done.stdout[-2000:] + done.stderr[-3000:])
        return done

    def test_pages_have_the_figures_of_the_study_and_the_command_runs(self):
        study = self.tune(20)
        made = json.loads(self.recipe("--json", "--output", self.work / "page", "--full").stdout)
        names = sorted(pathlib.Path(path).name for path in made["files"])
        self.assertEqual(names, ["recipe.html", "recipe.md", "recipe.pdf", "study_page.html"])
        self.assertEqual(made["config"], study["best"]["config"])
        self.assertAlmostEqual(made["throughput"]["estimate"], study["best"]["estimate"])
        self.assertAlmostEqual(made["throughput"]["low"], study["best"]["low"])
        self.assertIn("python", made["holds_for"])
        self.assertIn("kernel", made["holds_for"])
        page = (self.work / "page" / "recipe.pdf").read_bytes()
        self.assertTrue(page.startswith(b"%PDF-1.4"))
        self.assertEqual(len(re.findall(rb"/Type /Page ", page)), 1)
        pasted = subprocess.run(["sh", "-c", made["paste"]["command"]], capture_output=True, text=True, timeout=30)
        self.assertEqual(pasted.returncode, 0, pasted.stderr)
        printed = float(pasted.stdout.split()[-1])
        self.assertAlmostEqual(printed / made["throughput"]["estimate"], 1, delta=0.02)

    def test_a_file_name_chooses_the_format_and_nothing_gives_markdown(self):
        self.tune(6)
        self.assertTrue(self.recipe().stdout.startswith("# Recipe: small\n"))
        self.recipe("--output", self.work / "one.pdf")
        self.assertTrue((self.work / "one.pdf").read_bytes().startswith(b"%PDF"))
        refused = self.recipe("--output", self.work / "one.pdf", "--format", "md,html", expect=2)
        self.assertIn("give a folder", refused.stderr)
        self.assertIn("did you mean `html`", self.recipe("--format", "htm", expect=2).stderr)
        self.assertIn("at least 2", self.recipe("--check", "--pairs", "1", expect=2).stderr)

    def test_a_check_says_whether_the_gain_still_holds_and_is_kept(self):
        self.tune(20)
        held = json.loads(self.recipe("--check", "--json").stdout)
        self.assertEqual(held["check"]["verdict"], "holds")
        self.assertEqual(len(held["check"]["best"]), 3)
        self.assertIn("Re-checked", self.recipe().stdout)
        self.set_gain(0.02)
        faded = json.loads(self.recipe("--check", "--json", expect=3).stdout)
        self.assertEqual(faded["check"]["verdict"], "faded")
        self.assertIn("No longer holds", self.recipe().stdout)
        self.set_gain(-1)
        gone = json.loads(self.recipe("--check", "--json", expect=3).stdout)
        self.assertEqual(gone["check"]["verdict"], "does_not_run")
        self.assertIn("out of memory", gone["check"]["sentence"])

    def test_an_unknown_study_is_said_in_one_line(self):
        self.tune(1)
        done = self.run_lockstep("recipe", "nonsense")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1)


if __name__ == "__main__":
    unittest.main()
