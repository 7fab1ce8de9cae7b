"""lockstep.log: pure Python, also where the compiled module is missing. Run with python/src on PYTHONPATH."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"]) / "python" / "src"
LOCKSTEP = pathlib.Path(os.environ["LOCKSTEP_BUILD_DIR"]) / "lockstep"
OURS = ("LOCKSTEP_RUN_ID", "LOCKSTEP_RECORD", "LOCKSTEP_TRIAL", "LOCKSTEP_MESSAGE_FD", "RANK", "WORLD_SIZE")


class Log(unittest.TestCase):
    def setUp(self):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-log-"))
        self.addCleanup(shutil.rmtree, self.home, ignore_errors=True)
        self.environment = {name: value for name, value in os.environ.items() if name not in OURS}
        self.environment.update(LOCKSTEP_HOME=str(self.home), PYTHONPATH=str(SOURCE))

    def python(self, text, expect=0, **variables):
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], env={**self.environment, **variables},
                              capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return done

    def lines(self, name):
        return [json.loads(line) for file in sorted(self.home.glob(f"runs/*/{name}")) for line in file.read_text().splitlines()]

    def test_works_without_the_compiled_module_which_is_named_when_it_is_needed(self):
        done = self.python("""
            import sys
            sys.modules["lockstep._core"] = None
            import lockstep
            lockstep.log(1, loss=2.0)
            try:
                lockstep.plan
            except ImportError as error:
                print(error)
        """)
        self.assertIn("lockstep.plan needs the compiled module", done.stdout)
        self.assertEqual(self.lines("rank-00000.jsonl")[0]["values"], {"loss": 2.0})

    def test_under_launch_lines_join_the_run_of_the_rank(self):
        self.python("import lockstep; lockstep.log(7, loss=1.5, extra=3)", LOCKSTEP_RUN_ID="20260101-000000-abc", RANK="3",
                    WORLD_SIZE="4")
        (line,) = self.lines("rank-00003.jsonl")
        self.assertEqual((line["type"], line["run"], line["rank"], line["step"]), ("metrics", "20260101-000000-abc", 3, 7))
        self.assertEqual(line["values"], {"loss": 1.5, "extra": 3.0})
        self.assertEqual(self.lines("run.jsonl"), [], "the run is the launcher's")

    def test_rates_come_from_the_time_between_calls(self):
        self.python("""
            import time, lockstep
            for step in (10, 20):
                lockstep.log(step, tokens=1000, samples=10)
                time.sleep(0.2)
        """)
        (line,) = self.lines("rank-00000.jsonl")
        self.assertEqual(line["step"], 20, "the first call has nothing to say yet")
        seconds = 10 * line["values"]["step_seconds"]
        self.assertGreaterEqual(seconds, 0.2)
        self.assertAlmostEqual(line["values"]["tokens_per_second"] * seconds, 1000, places=3)
        self.assertAlmostEqual(line["values"]["samples_per_second"] * seconds, 10, places=3)

    def test_outside_of_launch_it_is_a_run_that_report_shows(self):
        self.python("""
            import lockstep
            for step in range(1, 4):
                lockstep.log(loss=1 / step)
        """)
        self.assertEqual([line["step"] for line in self.lines("rank-00000.jsonl")], [1, 2, 3])
        self.assertEqual([line["type"] for line in self.lines("run.jsonl")], ["run", "end"])
        report = subprocess.run([LOCKSTEP, "report", "last", "--json"], env=self.environment, capture_output=True, text=True)
        self.assertEqual(report.returncode, 0, report.stderr)
        found = json.loads(report.stdout)
        self.assertEqual([round(point[1], 3) for point in found["loss"]], [1.0, 0.5, 0.333])
        self.assertIn("done", report.stdout)

    def test_an_exception_ends_the_run_as_failed(self):
        self.python("import lockstep\nlockstep.log(1, loss=1)\nraise ValueError('no luck')", expect=1)
        end = self.lines("run.jsonl")[-1]
        self.assertEqual((end["status"], end["exit_reason"]), ("failed", "ValueError: no luck"))

    def test_a_line_that_a_kill_cut_short_is_taken_away(self):
        folder = self.home / "runs" / "r1"
        folder.mkdir(parents=True)
        (folder / "rank-00000.jsonl").write_text('{"whole": 1}\n{"half')
        self.python("import lockstep; lockstep.log(2, loss=1)", LOCKSTEP_RUN_ID="r1")
        self.assertEqual([line.get("step") for line in self.lines("rank-00000.jsonl")], [None, 2])

    def test_nothing_raises_into_the_training(self):
        home = self.home / "file"
        home.write_text("not a folder")
        self.python("""
            import lockstep
            class Odd:
                def __float__(self): raise RuntimeError("on another device")
            lockstep.log("x", loss=1)
            lockstep.log(1, loss=Odd(), other="text", nan=float("nan"), big=float("inf"))
            lockstep.log(2, loss=None, tokens="many")
        """, LOCKSTEP_HOME=str(home))
        self.python("""
            import lockstep
            lockstep.log(1, loss=float("nan"), big=float("inf"), text="word")
        """)
        self.assertEqual(self.lines("rank-00000.jsonl")[0]["values"], {"loss": "nan", "big": "inf"})

    def test_a_call_returns_at_once(self):
        done = self.python("""
            import time, lockstep
            lockstep.log(0, loss=1)
            begin = time.perf_counter()
            for step in range(1, 5001):
                lockstep.log(step, loss=1 / step)
            print((time.perf_counter() - begin) / 5000)
        """)
        self.assertLess(float(done.stdout), 0.01)  # some 20 microseconds on a quiet machine
        self.assertEqual(len(self.lines("rank-00000.jsonl")), 5001)

    def test_a_trial_of_the_tuner_prints_what_it_reads(self):
        done = self.python("""
            import time, lockstep
            for step in (1, 2):
                lockstep.log(step, tokens=100)
                time.sleep(0.01)
        """, LOCKSTEP_TRIAL="3")
        self.assertGreater(json.loads(done.stdout.splitlines()[-1])["tokens_per_second"], 0)
        self.assertEqual(self.lines("*.jsonl"), [], "a trial is not a run")

    def test_the_tuner_measures_a_program_that_only_calls_log(self):
        script = self.home / "train.py"
        script.write_text("import sys, time, lockstep\nfor step in range(1, 6):\n    time.sleep(0.02)\n"
                          "    lockstep.log(step, tokens=int(sys.argv[1]))\n")
        space = self.home / "space.yaml"
        space.write_text("knobs:\n  micro: {choices: [64, 128]}\n")
        done = subprocess.run([LOCKSTEP, "tune", "--command", f"{sys.executable} {script} {{micro}}", "--space", space,
                               "--trials", "2", "--json"], env=self.environment, capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout[-1500:] + done.stderr[-1500:])

    def test_other_ranks_of_another_launcher_make_no_runs_of_their_own(self):
        self.python("import lockstep; lockstep.log(1, loss=1)", RANK="1", WORLD_SIZE="2")
        self.assertEqual(list(self.home.iterdir()), [])

    def test_a_forked_child_writes_nothing(self):
        self.python("""
            import os, lockstep
            lockstep.log(1, loss=1)
            child = os.fork()
            if child == 0:
                lockstep.log(2, loss=1)
                os._exit(0)
            os.waitpid(child, 0)
        """)
        self.assertEqual([line["step"] for line in self.lines("rank-00000.jsonl")], [1])


if __name__ == "__main__":
    unittest.main()
