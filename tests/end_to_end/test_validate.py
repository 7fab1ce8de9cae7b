"""A plan checked on proxies, from the job file to the runbook that quotes the result. Nothing here judges a time."""
import json
import signal
import unittest

import harness

# Large enough that it needs a proxy, small enough that the planner is quick.
JOB = {"model": {"arch": "llama", "name": "small", "layers": 16, "hidden": 2048, "heads": 16, "kv_heads": 4, "ffn_hidden": 5632,
                 "vocab": 32000, "max_sequence": 1024},
       "cluster": "1x4xH100", "precision": "bf16", "data": {"kind": "text", "path": "not-here"},
       "batch": {"micro": 1, "accumulation": 2, "sequence_length": 1024}, "layout": {"dp": 2, "tp": 2}, "steps": 100}
QUICK = ("--device", "cpu", "--ranks", "2", "--budget", "1s", "--steps", "4", "--repetitions", "1", "--proxies", "1")


class Validate(harness.EndToEnd):
    def setUp(self):
        super().setUp()
        self.job = self.write_job("job.yaml", JOB)
        self.temporary = self.folder / "temporary"
        self.temporary.mkdir()
        self.environment["TMPDIR"] = str(self.temporary)

    def proxies(self, *arguments):
        done = self.run_lockstep("validate", self.job, "--device", "cpu", "--ranks", "2", "--dry-run", "--json", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_a_dry_run_chooses_and_measures_nothing(self):
        choice = self.proxies()
        self.assertEqual(choice["schema"], "lockstep.proxies/1")
        self.assertEqual(sorted(kind for proxy in choice["proxies"] for kind in proxy["checks"]), ["dp", "tp"])
        self.assertFalse((self.folder / "home" / "runs").exists())
        self.assertEqual(len(self.proxies("--proxies", "1")["unchecked"]), 1)
        limited = self.proxies("--parameters", "1M")["proxies"]
        self.assertTrue(all(proxy["parameters"] <= 1e6 for proxy in limited))

    def check(self, found):
        """What must hold of every document, whatever was measured."""
        self.assertEqual(found["schema"], "lockstep.validation/1")
        for proxy in found["proxies"]:
            predicted, measured = proxy["predicted"]["step_seconds"]["expected"], proxy["measured"]["step_seconds"]
            self.assertAlmostEqual(proxy["error_percent"]["per_second"], 100 * (predicted / measured - 1), places=6)
            residuals = sum(row["residual_seconds"] for row in proxy["phases"])
            self.assertAlmostEqual(residuals, measured - predicted, delta=1e-6 * measured)
            tokens = proxy["batch"]["global_sequences"] * proxy["batch"]["sequence_length"]
            self.assertAlmostEqual(proxy["measured"]["per_second"] * measured, tokens, places=6)
            self.assertGreater(proxy["measured"]["memory_bytes"], 0)
            for run in proxy["runs"]:
                report = self.run_lockstep("report", run["run"], "--json")
                self.assertEqual(report.returncode, 0, report.stderr)
        target = found["target"]
        before, after = target["before"]["per_second"], target["after"]["per_second"]
        self.assertAlmostEqual(before["expected"], after["expected"], places=6)  # other devices
        self.assertLessEqual(after["low"], before["low"])
        self.assertGreaterEqual(after["high"], before["high"])

    def test_predicted_and_measured_stand_side_by_side_and_the_runbook_quotes_them(self):
        output, page = self.folder / "validation.json", self.folder / "page.md"
        done = self.run_lockstep("validate", self.job, *QUICK, "--output", output, "--report", page, "--json",
                                 "--within", "1e-9")
        # The check fails: nothing agrees to that many digits. What was found is there all the same.
        self.assertEqual(done.returncode, 3, done.stderr[-3000:])
        self.assertIn("--within", done.stderr)
        found = json.loads(done.stdout)
        self.assertEqual(found, json.loads(output.read_text()))
        self.check(found)
        self.assertEqual(len(found["unchecked"]), 1)
        self.assertIn("Check of job on proxies", page.read_text())
        book = self.run_lockstep("runbook", self.job, "--validation", output, "-o", self.folder / "book.md")
        self.assertEqual(book.returncode, 0, book.stderr)
        self.assertNotIn("was not validated", (self.folder / "book.md").read_text())
        self.assertEqual(list(self.temporary.iterdir()), [])

    def test_ctrl_c_ends_it_and_writes_nothing(self):
        output = self.folder / "validation.json"
        process = self.start("validate", self.job, *QUICK, "--output", output)
        self.addCleanup(process.kill)
        self.assertIn("job:", process.stdout.readline())
        harness.wait_for(lambda: list((self.folder / "home" / "runs").glob("*/ranks.json")), timeout=120)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130, out + err)
        self.assertFalse(output.exists())

    def test_what_cannot_be_is_said_before_anything_starts(self):
        self.expect_error(2, ["--report", ".md"], "validate", self.job, "--report", "page.pdf")
        self.expect_error(2, ["--budget"], "validate", self.job, "--budget", "soon")
        self.expect_error(2, ["there is no folder"], "validate", self.job, "--output", "nowhere/x.json")
        self.expect_error(4, ["no fp32 profile of this machine for 2 ranks"], "validate", self.job, *QUICK, "--calibrate",
                          "never")


if __name__ == "__main__":
    unittest.main()
