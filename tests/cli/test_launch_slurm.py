"""`lockstep launch --on slurm` and `tune --on slurm` against a Slurm that only writes down what it is told."""
import json
import os
import pathlib
import signal
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "end_to_end"))
from harness import SOURCE, EndToEnd, wait_for  # noqa: E402

import fake_slurm  # noqa: E402

HOSTILE = ["$(touch pwned)", "`touch pwned`", "'; touch pwned; '", '"; touch pwned; "', "--wrap=touch pwned", "-x", "&anchor *anchor",
           "a\nb\n#SBATCH --wrap=id", "!!python/object:os.system", "%j/%u", "${HOME}", "\\", "x" * 300, "ünïcödé", "*"]


class WithFakeSlurm(EndToEnd):
    def setUp(self):
        super().setUp()
        self.slurm = fake_slurm.install(self.folder / "slurm")
        self.environment["PATH"] = f"{self.slurm}:{self.environment['PATH']}"

    def submitted(self, number=1):
        return json.loads((self.slurm / f"sbatch-{number}.json").read_text())

    def launch(self, *arguments, expect=0, **options):
        done = self.run_lockstep("launch", *arguments, **options)
        self.assertEqual(done.returncode, expect, done.stdout[-2000:] + done.stderr[-2000:])
        return done

    def flags_of(self, words):
        """Up to the script: what sbatch reads as its own."""
        script = next(index for index, word in enumerate(words) if not word.startswith("--"))
        return words[:script], words[script:]


class LaunchOnSlurm(WithFakeSlurm):
    def test_a_submission_asks_for_what_the_job_and_its_settings_say(self):
        job = self.text_job(cluster="2x1xcpu", launch={
            "spares": 1, "time": "2h", "notice": "3m", "cpus_per_node": 4, "memory_per_node": "2GiB", "environment": {"X": "y z"},
            "slurm": {"partition": "p", "account": "a", "qos": "q", "constraint": "c&d", "reservation": "r", "nodelist": "n[1-3]",
                      "exclude": "n9", "gres": "gpu:tiny:1", "exclusive": True, "options": ["--mail-type=END"]}})
        self.launch("--on", "slurm", job, "--detach")
        flags, rest = self.flags_of(self.submitted()["words"])
        for flag in ("--nodes=3", "--ntasks-per-node=1", "--no-kill", "--requeue", "--open-mode=append", "--export=ALL",
                     "--signal=USR1@180", "--time=120", "--cpus-per-task=4", "--mem=2048M", "--partition=p", "--account=a",
                     "--qos=q", "--constraint=c&d", "--reservation=r", "--nodelist=n[1-3]", "--exclude=n9", "--gres=gpu:tiny:1",
                     "--exclusive", "--mail-type=END"):
            self.assertIn(flag, flags)
        self.assertEqual(self.submitted()["environment"]["X"], "y z")
        self.assertIn("--cpus-per-task=4", rest)

    def test_the_token_travels_in_the_environment_alone(self):
        self.launch("--on", "slurm", self.text_job(), "--detach")
        token = self.submitted()["environment"]["LOCKSTEP_TOKEN"]
        self.assertGreaterEqual(len(token), 16)
        self.assertNotIn(token, json.dumps(self.submitted()["words"]))
        for path in (self.folder / "home").rglob("*"):
            if path.is_file():
                self.assertNotIn(token.encode(), path.read_bytes(), path)

    def test_a_dry_run_shows_the_command_and_submits_nothing(self):
        done = self.launch("--on", "slurm", self.text_job(), "--dry-run")
        self.assertIn("$ sbatch --parsable", done.stdout)
        self.assertIn("srun --ntasks-per-node=1 --no-kill", done.stdout)
        self.assertEqual(list(self.slurm.glob("sbatch-*")), [])

    def test_hostile_values_stay_values(self):
        for value in HOSTILE:
            for old in self.slurm.glob("sbatch-*"):
                old.unlink()
            with self.subTest(value=value):
                self.submit_hostile(value)
                self.assertFalse((self.folder / "pwned").exists())

    def submit_hostile(self, value):
        one_line = value.replace("\n", " ")
        job = self.text_job(name=one_line, launch={"environment": {"VALUE": one_line},
                                                   "slurm": {"partition": one_line, "account": one_line}})
        self.launch("--on", "slurm", job, "--detach")
        flags, rest = self.flags_of(self.submitted()["words"])
        names = [flag.partition("=")[0] for flag in flags]
        self.assertEqual(len(names), len(set(names)), "a value became a flag")
        self.assertNotIn("--wrap", names)
        given = dict(flag.partition("=")[::2] for flag in flags)
        self.assertRegex(given["--job-name"], r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
        self.assertEqual(given["--partition"], one_line)
        self.assertEqual(self.submitted()["environment"]["VALUE"], one_line)
        self.assertEqual(rest[0], str(pathlib.Path(rest[1]) / "slurm-batch.sh"))
        self.assertEqual(self.submitted()["script"], self.plain_script())

    def plain_script(self):
        """What a harmless job's script looks like: every job has the same."""
        if not hasattr(self, "script"):
            done = self.launch("--on", "slurm", self.text_job(), "--dry-run", "--json")
            files = {pathlib.Path(file["path"]).name: file["text"] for file in json.loads(done.stdout)["files"]}
            self.script = files["slurm-batch.sh"]
        return self.script

    def test_a_name_of_several_lines_is_refused_or_cleaned(self):
        for value in ("a\nb", "a\x1b[31mb"):
            done = self.run_lockstep("launch", "--on", "slurm", self.text_job(name=value), "--detach")
            if done.returncode == 0:
                flags, _ = self.flags_of(self.submitted()["words"])
                self.assertTrue(all("\n" not in flag and "\x1b" not in flag for flag in flags))
            else:
                self.assertEqual(done.returncode, 2, done.stderr)

    def test_settings_that_would_undo_ours_are_refused_with_their_place(self):
        for option in ("--wrap=id", "--wra=id", "--out=x", "-n4", "echo", "--", "--array=1-9", "--export=NONE"):
            line = self.expect_error(2, ["launch.slurm", "options"], "launch", "--on", "slurm",
                                     self.text_job(launch={"slurm": {"options": [option]}}), "--detach")
            self.assertIn("job.yaml", line)
        self.expect_error(2, ["partitoin", "did you mean `partition`"], "launch", "--on", "slurm",
                          self.text_job(launch={"slurm": {"partitoin": "x"}}), "--detach")
        self.expect_error(2, ["notice"], "launch", "--on", "slurm", self.text_job(launch={"time": "1m"}), "--detach")
        self.assertEqual(list(self.slurm.glob("sbatch-*")), [])

    def test_containers_need_pyxis(self):
        text = "/data/text.txt"
        job = self.text_job(data={"kind": "text", "path": text},
                            launch={"image": "nvcr.io#nvidia/pytorch:24.01-py3", "slurm": {"mounts": ["/data:/data"]}})
        self.expect_error(4, ["Pyxis"], "launch", "--on", "slurm", job, "--detach")
        (self.slurm / "srun-help").write_text("      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n")
        self.launch("--on", "slurm", job, "--detach")
        _, rest = self.flags_of(self.submitted()["words"])
        self.assertIn("--container-image=nvcr.io#nvidia/pytorch:24.01-py3", rest)
        self.assertTrue(any(word.startswith("--container-mounts=") and word.endswith(",/data:/data") for word in rest), rest)
        self.assertEqual(rest[rest.index("--") + 1], "lockstep")

    def test_a_submission_that_slurm_refuses_says_what_slurm_said(self):
        (self.slurm / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: x' >&2\nexit 1\n")
        self.expect_error(4, ["sbatch", "invalid partition specified: x"], "launch", "--on", "slurm", self.text_job())

    # --- following -------------------------------------------------------------------------------------------------------
    def run_folder(self):
        return next((self.folder / "home" / "runs").iterdir())

    def job_is(self, text):
        (self.slurm / "job").write_text(f"JobId=1 JobName=x UserId=a(1) {text}\n")

    def ends_with(self, code, state, exit_code="0:0", **files):
        """Follows a job whose end Slurm tells so."""
        self.job_is("JobState=RUNNING Reason=None Restarts=0 NodeList=n[1-2]")
        self.launch("--on", "slurm", self.text_job(), "--detach")
        for name, text in files.items():
            (self.run_folder() / name.replace("_", "-")).write_text(text)
        self.job_is(f"JobState={state} Reason=None Restarts=1 ExitCode={exit_code} NodeList=n[1-2]")
        return self.launch("--attach", "last", expect=code)

    def test_a_job_that_is_done_is_done(self):
        self.assertIn("done", self.ends_with(0, "COMPLETED").stdout)

    def test_the_exit_code_of_the_run_is_that_of_the_command(self):
        self.ends_with(3, "FAILED", "3:0")

    def test_a_stopped_run_is_130(self):
        self.ends_with(130, "FAILED", "130:0")

    def test_a_time_limit_is_a_failure(self):
        self.assertIn("TIMEOUT", self.ends_with(1, "TIMEOUT", "0:15").stdout)

    def test_a_run_that_ended_without_its_first_node_is_done_though_slurm_calls_it_cancelled(self):
        self.ends_with(0, "CANCELLED", "0:0", end_1_0_2="0\n")

    def test_what_slurm_forgot_is_in_the_folder(self):
        self.job_is("JobState=RUNNING Reason=None Restarts=0 NodeList=n[1-2]")
        self.launch("--on", "slurm", self.text_job(), "--detach")
        (self.slurm / "job").unlink()
        (self.run_folder() / "exit-code").write_text("75\n")
        self.launch("--attach", "last", expect=75)

    def test_cancel_asks_the_run_first_and_insists_the_second_time(self):
        self.job_is("JobState=RUNNING Reason=None Restarts=0 NodeList=n[1-2]")
        self.launch("--on", "slurm", self.text_job(), "--detach")
        self.launch("--cancel", "last")
        self.launch("--cancel", "last")
        said = [json.loads(line) for line in (self.slurm / "scancel.txt").read_text().splitlines()]
        self.assertEqual(said, [["--signal=TERM", "1"], ["1"]])

    def test_a_job_that_waits_is_cancelled_at_once(self):
        self.job_is("JobState=PENDING Reason=Priority Restarts=0")
        self.launch("--on", "slurm", self.text_job(), "--detach")
        self.launch("--cancel", "last")
        self.assertEqual((self.slurm / "scancel.txt").read_text().splitlines(), ['["1"]'])


class TuneOnSlurm(WithFakeSlurm):
    """Workers are real processes here; only Slurm is not."""

    def setUp(self):
        super().setUp()
        self.environment["FAKE_SLURM"] = "run"
        self.space = SOURCE / "tests" / "tune" / "synthetic_space.yaml"
        self.worker = f"{sys.executable} {SOURCE / 'tests' / 'tune' / 'synthetic_worker.py'}"
        self.addCleanup(self.end_workers)

    def end_workers(self):
        for path in self.slurm.glob("sbatch-*.json"):
            for pid in json.loads(path.read_text())["tasks"].values():
                if fake_slurm.alive(pid):
                    os.killpg(pid, signal.SIGKILL)

    def tasks(self, number=1):
        path = self.slurm / f"sbatch-{number}.json"
        return json.loads(path.read_text())["tasks"] if path.exists() else {}

    def tune(self, *arguments, expect=0):
        done = self.run_lockstep("tune", *arguments, "--json", timeout=600)
        self.assertEqual(done.returncode, expect, done.stdout[-2000:] + done.stderr[-4000:])
        return json.loads(done.stdout.strip().splitlines()[-1])

    def test_trials_are_measured_by_the_tasks_of_an_array(self):
        found = self.tune("--space", self.space, "--worker", self.worker, "--trials", 16, "--parallel", 2, "--on", "slurm")
        self.assertEqual((found["status"], found["trials"]), ("done", 16))
        self.assertIn("--array=0-1", self.submitted()["words"])
        self.assertIn("--no-requeue", self.submitted()["words"])
        wait_for(lambda: not any(map(fake_slurm.alive, self.tasks().values())))

    def test_one_lane_gives_the_study_that_this_machine_gives(self):
        arguments = ["--space", self.space, "--worker", f"{self.worker} --seconds 5", "--trials", 14, "--seed", 4]
        here = self.tune(*arguments)
        there = self.tune(*arguments, "--on", "slurm")
        self.assertEqual(there["best"], here["best"])

    def test_a_lost_task_is_submitted_again_and_no_trial_is_lost(self):
        slow = self.folder / "slow.py"
        slow.write_text("import time\nfor i in range(8):\n    time.sleep(0.2)\n    print('tokens_per_second=%d' % (100 + i), flush=True)\n")
        process = self.start("tune", "--space", self.space, "--command", f"{sys.executable} {slow}", "--trials", 4, "--no-importance",
                             "--confirm", 0, "--on", "slurm", "--json")
        folder = wait_for(lambda: next((self.folder / "home" / "studies").glob("*/array-*/0.worker"), None)).parent
        wait_for(lambda: json.loads((folder / "0.worker").read_text())["id"] == 2)
        os.killpg(self.tasks()["0"], signal.SIGKILL)
        out, err = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 0, err)
        self.assertEqual(json.loads(out.strip().splitlines()[-1])["trials"], 4)
        self.assertIn("--array=0", self.submitted(2)["words"])

    def test_ctrl_c_ends_the_tasks_and_the_study_goes_on_later(self):
        process = self.start("tune", "--space", self.space, "--worker", f"{self.worker} --sleep 0.3", "--trials", 12, "--on", "slurm")
        wait_for(lambda: self.tasks())
        wait_for(lambda: next((self.folder / "home" / "studies").glob("*/array-*/0.result"), None))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130, err)
        wait_for(lambda: not any(map(fake_slurm.alive, self.tasks().values())))
        found = self.tune("--resume")
        self.assertEqual((found["status"], found["trials"]), ("done", 12))

    def test_settings_come_from_a_file_where_there_is_no_job(self):
        settings = self.folder / "cluster.yaml"
        settings.write_text("launch: {time: 1h, gpus_per_node: 2, slurm: {partition: '$(id)'}}\n")
        self.tune("--space", self.space, "--worker", self.worker, "--trials", 8, "--on", "slurm", "--launch", settings,
                  "--name", "--wrap=touch pwned")
        words = self.submitted()["words"]
        self.assertIn("--partition=$(id)", words)
        self.assertIn("--time=60", words)
        self.assertIn("--gres=gpu:2", words)
        self.assertFalse(any(word.startswith("--wrap") for word in words))
        self.expect_error(2, ["--launch", "--on"], "tune", "--space", self.space, "--worker", self.worker, "--launch", settings)


if __name__ == "__main__":
    unittest.main(verbosity=2)
