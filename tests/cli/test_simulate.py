"""`lockstep simulate` as a user runs it. Needs no engine."""
import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "end_to_end"))
from harness import EndToEnd  # noqa: E402


class Simulate(EndToEnd):
    def simulate(self, *arguments, expect=0):
        done = self.run_lockstep("simulate", *arguments)
        self.assertEqual(done.returncode, expect, done.stdout[-2000:] + done.stderr[-2000:])
        return done

    def study(self, *arguments):
        return json.loads(self.simulate(*arguments, "--json", "--samples", "50").stdout)

    def test_a_plan_is_enough(self):
        self.run_lockstep("plan", "--model", "llama2-13b", "--cluster", "4x8xH100", "--tokens", "300B", "--output", "plan.json")
        study = self.study("plan.json", "--days", "30")
        self.assertEqual(study["schema"], "lockstep.goodput/1")
        plan = json.loads((self.folder / "plan.json").read_text())
        planned = study["choices"][0]
        self.assertEqual(planned["checkpoint_interval_seconds"], plan["best"]["checkpoint"]["interval_seconds"])
        self.assertGreater(planned["usd"], 0)
        for choice in study["choices"]:
            self.assertAlmostEqual(sum(choice["shares"].values()), 1.0, places=6)

    def test_llama_3_and_opt(self):
        llama = self.study("--failures", "llama3", "--nodes", "2048", "--days", "54", "--spares", "400", "--disk-only",
                           "--when-short", "wait", "--checkpoint-every", "30m", "--disk-restart", "10m")
        planned = llama["choices"][0]
        self.assertTrue(330 < planned["interruptions"]["median"] < 500, planned["interruptions"])
        self.assertGreater(planned["goodput"]["median"], 0.85)
        memory = self.study("--failures", "llama3", "--nodes", "2048", "--days", "54", "--spares", "16")
        self.assertGreater(memory["choices"][0]["goodput"]["median"], planned["goodput"]["median"])

    def test_the_same_seed_gives_the_same_figures(self):
        arguments = ("--failure-rate", "6.5", "--nodes", "64", "--days", "10", "--seed", "3")
        self.assertEqual(self.study(*arguments), self.study(*arguments))
        self.assertNotEqual(self.study(*arguments), self.study(*arguments[:-1], "4"))

    def test_bad_input_is_one_line(self):
        for arguments, word in [((), "--nodes"),
                                (("--nodes", "4"), "how often nodes fail"),
                                (("--nodes", "4", "--failures", "missing.json"), "missing.json"),
                                (("missing.json",), "missing.json"),
                                (("--nodes", "4", "--failures", "llama3", "--detect", "3"), "unit")]:
            done = self.run_lockstep("simulate", *arguments)
            self.assertIn(done.returncode, (2, 4), arguments)
            self.assertIn(word, done.stderr)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)


if __name__ == "__main__":
    unittest.main()
