"""`lockstep suggest` as a user runs it: JSON keys, agreement with `plan`, files, refusals, time."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time
import unittest

LOCKSTEP = os.path.join(os.environ["LOCKSTEP_BUILD_DIR"], "lockstep")
BASIC = ["--params", "7e9", "--gpus", "8", "--dataset-tokens", "1e9"]


def run(*arguments, home, code=0):
    done = subprocess.run([LOCKSTEP, *arguments], capture_output=True, text=True, timeout=600,
                          env={**os.environ, "LOCKSTEP_HOME": str(home)})
    assert done.returncode == code, f"{arguments} ended with {done.returncode}: {done.stderr}{done.stdout}"
    return done


class Suggest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def suggest(self, *arguments, code=0):
        return run("suggest", *arguments, home=self.folder / "home", code=code)

    def document(self, *arguments):
        return json.loads(self.suggest(*arguments, "--json").stdout)

    def test_the_document_has_the_fixed_keys(self):
        answer = self.document(*BASIC)
        self.assertEqual(answer["schema"], "lockstep.suggest/1")
        for key in ("layout", "batch", "precision", "recompute", "environment", "loader", "prediction", "reasons"):
            self.assertIn(key, answer)
        for axis in ("pp", "dp", "shard", "zero", "cp", "tp", "ep"):
            self.assertIn(axis, answer["layout"])
        self.assertIn("NCCL_ALGO", answer["environment"])
        self.assertEqual(set(answer["environment"]), set(answer["environment_reasons"]))
        self.assertGreaterEqual(answer["loader"]["num_workers"], 1)
        self.assertGreaterEqual(answer["loader"]["prefetch_factor"], 1)
        speed = answer["prediction"]["intervals"]["tokens_per_second_per_gpu"]
        self.assertLess(speed["low"], speed["expected"])
        self.assertLess(speed["expected"], speed["high"])
        self.assertAlmostEqual(speed["expected"], answer["prediction"]["tokens_per_second_per_gpu"])
        self.assertGreater(len(answer["reasons"]), 5)

    def test_its_plan_command_answers_the_same(self):
        for question in (BASIC, ["--model", "llama3-8b", "--gpus", "8", "--gpu", "a100", "--dataset-size", "2B tokens"],
                         ["--params", "1.1B", "--gpus", "4", "--dataset-tokens", "22B"]):
            answer = self.document(*question)
            command = answer["plan_command"].split()
            self.assertEqual(command[:2], ["lockstep", "plan"])
            best = json.loads(run(*command[1:], "--json", home=self.folder / "home").stdout)["best"]
            for key in ("layout", "batch", "memory_gib", "prediction", "cost", "recompute", "precision"):
                self.assertEqual(answer[key], best[key], key)

    def test_the_job_file_is_planned_as_suggested(self):
        for question in (BASIC, ["--params", "30B", "--gpus", "32", "--dataset-tokens", "1B"],
                         ["--params", "70B", "--gpus", "8", "--dataset-tokens", "50M", "--task", "lora"]):
            job = self.folder / "job.yaml"
            answer = self.document(*question, "--write", str(job))
            best = json.loads(run("plan", str(job), "--json", home=self.folder / "home").stdout)["best"]
            best["memory_gib"].pop("snapshots", None)  # host memory, of runs that are recovered; not of the step
            for key in ("layout", "batch", "memory_gib"):
                self.assertEqual(answer[key], best[key], key)
            # The file gives the layout, so that it is priced without what choosing among layouts costs.
            self.assertNotIn("selection", best["breakdown_seconds"])
            chosen = answer["breakdown_seconds"]["selection"]
            self.assertGreater(chosen, 0)
            self.assertAlmostEqual(best["prediction"]["step_seconds"], answer["prediction"]["step_seconds"] - chosen,
                                   delta=1e-9)

    def test_scripts_are_scripts(self):
        for arguments in (["--stack", "torchrun"], ["--stack", "lockstep"], ["--gpus-per-node", "4"]):
            script = self.folder / "run.sh"
            self.suggest(*BASIC, *arguments, "--write", str(script))
            subprocess.run(["bash", "-n", str(script)], check=True, timeout=30)
            self.assertTrue(os.access(script, os.X_OK))
            if shutil.which("shellcheck"):
                checked = subprocess.run(["shellcheck", str(script)], capture_output=True, text=True, timeout=60)
                self.assertEqual(checked.returncode, 0, checked.stdout)

    def test_a_script_starts_torchrun_with_the_suggested_numbers(self):
        script, fake = self.folder / "run.sh", self.folder / "torchrun"
        answer = self.document(*BASIC, "--write", str(script))
        fake.write_text('#!/bin/sh\necho "OMP=$OMP_NUM_THREADS ALGO=${NCCL_ALGO-unset} $*"\n')
        fake.chmod(0o755)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("NCCL")}
        printed = subprocess.run([str(script), "--more"], capture_output=True, text=True, timeout=30, check=True,
                                 env={**environment, "PATH": f"{self.folder}:{os.environ['PATH']}"}).stdout
        self.assertIn(f"OMP={answer['environment']['OMP_NUM_THREADS']} ALGO=unset", printed)
        self.assertIn("--nproc-per-node=8", printed)
        self.assertIn(f"--per_device_train_batch_size {answer['batch']['micro']} "
                      f"--gradient_accumulation_steps {answer['batch']['accumulation']}", printed)
        self.assertTrue(printed.rstrip().endswith("--more"))

    def test_deepspeed_and_accelerate_get_their_own_layout(self):
        config, accelerate = self.folder / "ds.json", self.folder / "accelerate.yaml"
        self.suggest(*BASIC, "--write", str(config), "--write", str(accelerate))
        deepspeed = json.loads(config.read_text())
        self.assertEqual(deepspeed["train_batch_size"], deepspeed["train_micro_batch_size_per_gpu"] *
                         deepspeed["gradient_accumulation_steps"] * 8)
        self.assertIn("num_processes: 8\n", accelerate.read_text())

    def test_nonsense_is_refused_with_exit_2_and_one_line(self):
        wrong = [(["--params", "-7e9", "--gpus", "8", "--dataset-tokens", "1e9"], "--params"),
                 (["--params", "nan", "--gpus", "8", "--dataset-tokens", "1e9"], "--params"),
                 (["--params", "1e30", "--gpus", "8", "--dataset-tokens", "1e9"], "--params"),
                 (["--params", "0", "--gpus", "8", "--dataset-tokens", "1e9"], "--params"),
                 (["--params", "7e9", "--gpus", "0", "--dataset-tokens", "1e9"], "--gpus"),
                 (["--params", "7e9", "--gpus", "-1", "--dataset-tokens", "1e9"], "--gpus"),
                 (["--params", "7e9", "--gpus", "2.5", "--dataset-tokens", "1e9"], "--gpus"),
                 (["--params", "7e9", "--gpus", "8", "--dataset-tokens", "none"], "--dataset-tokens"),
                 (["--params", "7e9", "--gpus", "8"], "--dataset-tokens"),
                 (["--gpus", "8", "--dataset-tokens", "1e9"], "--params"),
                 ([*BASIC, "--gpu", "H1000"], "`H100`"), ([*BASIC, "--task", "fintune"], "`finetune`"),
                 ([*BASIC, "--stack", "deepsped"], "`deepspeed`"), ([*BASIC, "--seq", "0"], "--seq"),
                 ([*BASIC, "--model", "llama2-7b"], "--model"), ([*BASIC, "--write", "x.txt"], "--format")]
        for arguments, says in wrong:
            done = self.suggest(*arguments, code=2)
            self.assertIn(says, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        error = json.loads(self.suggest(*BASIC, "--gpu", "H1000", "--json", code=2).stdout)
        self.assertEqual(error["schema"], "lockstep.error/1")

    def test_what_does_not_fit_is_exit_3_with_the_gpus_that_would_do(self):
        done = self.suggest("--params", "70B", "--gpus", "2", "--dataset-tokens", "1e9", code=3)
        self.assertRegex(done.stderr, r"; \d+ H100 hold it")

    def test_asking_leaves_no_trace(self):
        self.suggest(*BASIC)
        self.assertFalse((self.folder / "home").exists())


@unittest.skipUnless(os.environ.get("LOCKSTEP_TIMING"), "judges a time: ctest -L timing")
class SuggestTiming(unittest.TestCase):
    def test_it_answers_in_under_50_ms(self):
        for question in (BASIC, ["--params", "70B", "--gpus", "512", "--dataset-tokens", "2T"],
                         ["--params", "30B", "--gpus", "64", "--dataset-tokens", "1B", "--stack", "deepspeed"]):
            best = float("inf")
            for _ in range(15):
                start = time.monotonic()
                run("suggest", *question, "--json", home="/nonexistent")
                best = min(best, time.monotonic() - start)
            print(f"{' '.join(question)}: {best * 1000:.1f} ms")
            self.assertLess(best, 0.05, question)


if __name__ == "__main__":
    unittest.main()
