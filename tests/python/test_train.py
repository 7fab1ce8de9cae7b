"""lockstep.train, lockstep.Run and lockstep.record, as a script or a notebook uses them. The package is on PYTHONPATH."""
import csv
import importlib.util
import json
import os
import pathlib
import random
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

import lockstep
from lockstep import _tensors

sys.path.insert(0, os.path.dirname(__file__))
from ranks import clean_environment  # noqa: E402

LOCKSTEP = pathlib.Path(os.environ["LOCKSTEP_BUILD_DIR"]) / "lockstep"
numpy = unittest.skipUnless(importlib.util.find_spec("numpy"), "NumPy is not installed")
engine = unittest.skipUnless((LOCKSTEP.parent / "liblockstep_engine.so").exists(), "this build has no engine")


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-train-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.home = self.folder / "home"
        rng = random.Random(5)
        words = "the lamb and the wolf walk in step".split()
        (self.folder / "text.txt").write_text(" ".join(rng.choice(words) for _ in range(6000)))
        self.job = {"model": {"arch": "gpt", "layers": 2, "hidden": 32, "heads": 2, "vocab": 256, "max_sequence": 32},
                    "cluster": "1x2xcpu", "data": {"kind": "text", "path": str(self.folder / "text.txt")},
                    "batch": {"micro": 4, "sequence_length": 32}, "steps": 12, "threads_per_rank": 1, "seed": 3}

    def start(self, text):
        """A script of its own, as a user's."""
        file = self.folder / "script.py"
        file.write_text(textwrap.dedent(text).replace("JOB", repr(self.job)))
        return subprocess.Popen([sys.executable, "-u", str(file)], cwd=self.folder, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env=clean_environment(LOCKSTEP_HOME=str(self.home)))

    def script(self, text, expect=0):
        process = self.start(text)
        out, err = process.communicate(timeout=600)
        self.assertEqual(process.returncode, expect, out + err)
        return out, err

    def executable(self, text):
        """Stands in for `lockstep`."""
        file = self.folder / "fake"
        file.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n" + textwrap.dedent(text))
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        os.environ["LOCKSTEP_EXECUTABLE"] = str(file)
        self.addCleanup(os.environ.pop, "LOCKSTEP_EXECUTABLE", None)


@engine
class Train(Folder):
    def test_a_script_sees_progress_and_the_result(self):
        self.job["data"]["path"] = "text.txt"  # from the working folder, as the script means it
        out, err = self.script("""
            import lockstep
            steps = []
            run = lockstep.train(JOB, callbacks=[steps.append], overrides={"name": "mine"})
            assert [one.step for one in steps] == list(range(1, 13)), steps
            assert all(one.loss > 0 and one.seconds > 0 and one.tokens_per_second > 0 for one in steps)
            assert (run.status, run.name, run.world) == ("done", "mine", 2), run
            assert run.final_loss == steps[-1].loss < steps[0].loss
            assert [row["loss"] for row in run.steps()] == [one.loss for one in steps]
            assert run.metrics(["loss"])["loss"][0] == (1, steps[0].loss)
            assert run.summary["steps"] == 12 and run.plan()["schema"] == "lockstep.plan/1" and run.job_yaml
            assert run.events(kind="checkpoint") and run.ranks("step_seconds") == [0, 1]
            assert [one.id for one in lockstep.runs()] == [run.id] and lockstep.open_run("last").id == run.id
            print("fine")
        """)
        self.assertEqual(out, "fine\n")
        self.assertRegex(err, r"(?m)^step 12/12  loss \d\.\d{4}  [\d,]+ tokens/s$")

    def test_ctrl_c_saves_and_the_run_goes_on_later(self):
        self.job["steps"] = 100_000
        process = self.start("""
            import lockstep
            def told(step):
                if step.step == 20:
                    print("under way")
            try:
                lockstep.train(JOB, callbacks=[told], progress=False)
                print("not stopped")
            except lockstep.Interrupted as stopped:
                assert isinstance(stopped, KeyboardInterrupt)
                print(stopped)
                run = stopped.run
                assert run.status == "interrupted" and run.summary["steps"] >= 20, run.summary
            first = []
            def one_more(step):
                first.append(step.step)
                raise lockstep.StopTraining
            again = lockstep.train(JOB, callbacks=[one_more], resume=True, progress=False)
            assert first == [run.summary["steps"] + 1], (first, run.summary)
            assert again.status == "interrupted"
            print("went on")
        """)
        self.assertEqual(process.stdout.readline(), "under way\n")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 0, out + err)
        self.assertRegex(out, r"^run \S+ was stopped after step \d+ and saved; .*\nwent on\n$")

    def test_what_a_callback_raises_comes_out_after_the_run_has_ended(self):
        self.job["steps"] = 100_000

        def fails(step):
            raise LookupError("of the callback")
        with self.assertRaisesRegex(LookupError, "of the callback"):
            lockstep.train(self.job, callbacks=[fails], progress=False, home=self.home)
        self.assertEqual(lockstep.open_run("last", self.home).status, "interrupted")

    def test_the_run_ends_with_the_process_that_started_it(self):
        self.job["steps"] = 1_000_000
        process = self.start("""
            import lockstep
            lockstep.train(JOB, callbacks=[lambda step: print("under way") if step.step == 2 else None], progress=False)
        """)
        self.assertEqual(process.stdout.readline(), "under way\n")
        process.kill()
        process.communicate(timeout=600)
        run = lockstep.open_run("last", self.home).wait(timeout=600)
        self.assertEqual(run.status, "interrupted")

    def test_a_wrong_key_is_a_spec_error_with_its_place(self):
        with self.assertRaises(lockstep.SpecError) as caught:
            lockstep.train({**self.job, "batch": {"mciro": 4}}, progress=False, home=self.home)
        self.assertRegex(str(caught.exception),
                         r'^override batch=\{"mciro": 4\}.*unknown key `mciro` in batch; did you mean `micro`\?$')
        file = self.folder / "job.yaml"
        file.write_text("model: gpt2-124m\nbatch:\n  mciro: 4\n")
        with self.assertRaises(lockstep.SpecError) as caught:
            lockstep.train(file, progress=False, home=self.home)
        self.assertTrue(str(caught.exception).startswith(f"{file}:3:3: unknown key `mciro`"), caught.exception)

    def test_a_file_that_is_missing_is_an_environment_error(self):
        with self.assertRaisesRegex(lockstep.EnvironmentError, "nowhere"):
            lockstep.train(self.job, data="nowhere.txt", progress=False, home=self.home)


class Exits(Folder):
    def test_exit_codes_are_exceptions_with_the_text_of_the_command(self):
        for code, kind in ((1, lockstep.RunFailed), (2, lockstep.SpecError), (3, lockstep.DoesNotFit),
                           (4, lockstep.EnvironmentError), (75, lockstep.WorthRetrying), (130, lockstep.Interrupted)):
            self.executable(f"""
                sys.stderr.write("lockstep: note: before\\nlockstep: what went wrong; do this\\n")
                sys.exit({code})
            """)
            with self.assertRaises(kind) as caught:
                lockstep.train(self.job, progress=False, home=self.home)
            self.assertEqual(str(caught.exception), "what went wrong; do this")
            self.assertEqual(isinstance(caught.exception, ValueError), code in (2, 3, 4))
        self.executable("""
            sys.stderr.write("lockstep: said elsewhere\\n")
            print(json.dumps({"schema": "lockstep.error/1", "exit_code": 3, "error": "said in the last line"}))
            sys.exit(3)
        """)
        with self.assertRaisesRegex(lockstep.DoesNotFit, "^said in the last line$"):
            lockstep.train(self.job, progress=False, home=self.home)

    def test_a_second_and_third_ctrl_c_end_what_does_not_listen(self):
        self.executable("""
            import signal
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            open(os.environ["LOCKSTEP_HOME"] + "/pid", "w").write(str(os.getpid()))
            print(json.dumps({"step": 1, "loss": None, "seconds": 1.0}), flush=True)
            time.sleep(600)
        """)
        self.home.mkdir()
        process = self.start("""
            import lockstep
            lockstep.train(JOB, callbacks=[lambda step: print(step.loss)], progress=False)
        """)
        self.assertEqual(process.stdout.readline(), "nan\n", "JSON has no NaN")
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        process.communicate(timeout=600)
        self.assertNotEqual(process.returncode, 0)
        with self.assertRaises(ProcessLookupError):
            os.kill(int((self.home / "pid").read_text()), 0)

    def test_what_is_started_gets_the_words_of_the_command_line(self):
        self.executable("""
            print(json.dumps({"step": 1, "loss": 1.0, "seconds": 1.0, "samples_per_second": 3.0}))
            sys.stderr.write("lockstep: " + json.dumps(sys.argv[1:]) + "\\n")
            sys.exit(1)
        """)
        with self.assertRaises(lockstep.RunFailed) as caught:
            lockstep.train("job.yaml", model="net.pt", loss="mse", data={"kind": "text", "path": pathlib.Path("t")},
                           backend="tcp", overrides=["steps=3"], resume="there", export="out", progress=False, home=self.home)
        words = json.loads(str(caught.exception))
        model = json.dumps({"torchscript": str(pathlib.Path("net.pt").resolve()), "loss": "mse"})
        self.assertEqual(words, ["train", "job.yaml", f"model={model}", 'data={"kind": "text", "path": "t"}', "steps=3", "--json",
                                 "--report-steps", "--backend", "tcp", "--export", "out", "--resume", "there"])

    @numpy
    def test_arrays_become_a_file_of_tensors(self):
        import numpy
        self.executable("""
            sys.stderr.write("lockstep: " + json.dumps(sys.argv[1:]) + "\\n")
            sys.exit(1)
        """)
        images, labels = numpy.arange(24, dtype="float32").reshape(4, 2, 3), numpy.array([3, 1, 0, 2])
        for data in ((images, labels), zip(images, labels), {"inputs": images, "target": labels}):
            with self.assertRaises(lockstep.RunFailed) as caught:
                lockstep.train(self.job, data=data, progress=False, home=self.home)
            section = json.loads(next(word for word in json.loads(str(caught.exception)) if word.startswith("data="))[5:])
            self.assertEqual((section["kind"], section["inputs"], section["target"]), ("tensors", ["inputs"], "target"))
            raw = pathlib.Path(section["path"]).read_bytes()
            size = int.from_bytes(raw[:8], "little")
            header = json.loads(raw[8:8 + size])
            self.assertEqual(header["inputs"], {"dtype": "F32", "shape": [4, 2, 3], "data_offsets": [0, 96]})
            self.assertEqual(header["target"], {"dtype": "I64", "shape": [4], "data_offsets": [96, 128]})
            self.assertEqual(raw[8 + size:], images.tobytes() + labels.tobytes())

    def test_what_cannot_be_trained_is_refused_before_anything_starts(self):
        for named, piece in (({"loss": "mse"}, "loss= goes with"), ({"data": 3}, "not int"), ({"data": [(1,)]}, "every sample"),
                             ({"model": "net.pt"}, "needs its loss"), ({"overrides": "steps=3"}, "a dict or a list"),
                             ({"model": 3, "loss": "mse"}, "int"), ({"data": [(1, 2)], "resume": True}, "folder=")):
            with self.assertRaises(lockstep.SpecError, msg=str(named)) as caught:
                lockstep.train(self.job, progress=False, home=self.home, **named)
            self.assertIn(piece, str(caught.exception))
        with self.assertRaisesRegex(lockstep.SpecError, "a job is a file or a dict"):
            lockstep.train(3)
        with self.assertRaisesRegex(lockstep.SpecError, "a job holds numbers"):
            lockstep.train({**self.job, "seed": object()}, home=self.home)

    def test_an_executable_that_is_not_there_is_an_environment_error(self):
        os.environ["LOCKSTEP_EXECUTABLE"] = "/nowhere/lockstep"
        self.addCleanup(os.environ.pop, "LOCKSTEP_EXECUTABLE", None)
        with self.assertRaisesRegex(lockstep.EnvironmentError, "LOCKSTEP_EXECUTABLE=/nowhere/lockstep"):
            lockstep.train(self.job, home=self.home)

    def test_a_rank_of_a_launcher_does_not_start_ranks(self):
        os.environ.update(RANK="1", WORLD_SIZE="2")
        self.addCleanup(lambda: [os.environ.pop(name) for name in ("RANK", "WORLD_SIZE")])
        with self.assertRaisesRegex(lockstep.SpecError, "rank 1 of 2 that torchrun started"):
            lockstep.train(self.job, home=self.home)

    def test_unlike_arrays_are_refused(self):
        class Fake:
            dtype = "float32"

            def __init__(self, rows):
                self.shape = (rows,)
        with self.assertRaisesRegex(lockstep.SpecError, "unlike numbers of samples"):
            _tensors.from_data((Fake(3), Fake(4)))


class Record(Folder):
    def test_a_plain_loop_is_a_run_that_report_and_diagnose_read(self):
        out, _ = self.script("""
            import time, lockstep
            def loader():
                for index in range(40):
                    time.sleep(0.02)
                    yield index
            with lockstep.record("plain", config={"lr": 0.1, "nan": float("nan")}) as run:
                for index in run.load(loader()):
                    with run.time("forward"):
                        time.sleep(0.001)
                    with run.time("backward"):
                        time.sleep(0.001)
                    lockstep.log(index + 1, extra=7)  # of the same run
                    run.step(loss=1.0 / (index + 1), samples=32, learning_rate=0.1)
                run.event("half way", kind="checkpoint", path="x")
            print(run.id)
            again = run.run()
            assert again.status == "done" and again.final_loss == 1 / 40, again
        """)
        run = lockstep.open_run("last", self.home)
        self.assertEqual((run.id, run.name, run.backend), (out.strip(), "plain", "python"))
        rows = run.steps()
        self.assertEqual([row["step"] for row in rows], list(range(1, 41)))
        for row in rows:
            parts = sum(row[f"{name}_seconds"] for name in ("data", "compute", "comm", "optimizer", "checkpoint", "host"))
            self.assertAlmostEqual(parts, row["step_seconds"], places=6)
            self.assertGreaterEqual(row["data_seconds"], 0.02)
            self.assertEqual(row["extra"], 7)
            self.assertGreater(row["memory_bytes"], 1e6)
        self.assertEqual(run.events(kind="config")[0]["data"], {"lr": 0.1, "nan": "nan"})
        environment = clean_environment(LOCKSTEP_HOME=str(self.home))
        for verb in (["report", "last", "--json"], ["diagnose", "last", "--json"]):
            done = subprocess.run([str(LOCKSTEP), *verb], capture_output=True, text=True, env=environment, timeout=300)
            self.assertEqual(done.returncode, 0, done.stderr)
            if verb[0] == "diagnose":
                self.assertEqual([one["cause"] for one in json.loads(done.stdout)["findings"]][:1], ["loader"], done.stdout)

    def observed(self, config):
        self.script(f"""
            import lockstep
            with lockstep.record("mine", config={config!r}) as run:
                for _ in range(6):
                    run.step(loss=1)
        """)
        path = self.home / "observations.csv"
        return list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []

    def test_a_run_that_says_what_it_ran_is_observed(self):
        (row,) = self.observed({"hardware": "H100", "gpus": 8, "model": "llama2-7b", "seq_len": 4096, "micro_batch": 2,
                                "global_batch_seqs": 64, "sharding": "fsdp", "lr": 0.1})
        self.assertEqual((row["model"], row["sharding"], row["micro_batch"]), ("llama2-7b", "fsdp", "2"))
        self.assertGreater(float(row["step_time_s"]), 0)
        self.assertNotIn("lr", row)

    def test_a_run_that_says_too_little_is_not_observed(self):
        self.assertEqual(self.observed({"hardware": "H100", "model": "llama2-7b"}), [])

    def test_how_the_loop_ended_is_recorded(self):
        for raised, status, reason in (("ValueError('too hot')", "failed", "ValueError: too hot"),
                                       ("KeyboardInterrupt", "interrupted", "stopped by Ctrl-C")):
            self.script(f"""
                import lockstep
                try:
                    with lockstep.record() as run:
                        run.step(loss=float("nan"))
                        raise {raised}
                except BaseException:
                    pass
            """)
            run = lockstep.open_run("last", self.home)
            self.assertEqual((run.status, run.exit_reason, run.name), (status, reason, "script"))

    def test_what_is_no_phase_or_level_is_refused(self):
        self.script("""
            import lockstep
            with lockstep.record() as run:
                for wrong in (lambda: run.time("lunch").__enter__(), lambda: run.event("x", level="loud")):
                    try:
                        wrong()
                        raise SystemExit("accepted")
                    except lockstep.SpecError as error:
                        assert "use one of" in str(error)
        """)

    def test_frames_need_pandas(self):
        self.script("""
            import lockstep
            with lockstep.record() as run:
                run.step(loss=2.0)
            try:
                frame = run.run().to_pandas()
                assert frame["loss"].tolist() == [2.0] and frame.index.name == "step"
            except ImportError as problem:
                assert "to_pandas() needs pandas" in str(problem), problem
        """)


if __name__ == "__main__":
    unittest.main()
