"""Names, numbers, files and trials that no user would write on purpose."""
import subprocess
import sys

from drills import *


class Names(Drill):
    def model(self, name):
        path = self.folder / "model.yaml"
        path.write_text(f'arch: gpt\nname: "{name}"\nlayers: 24\nhidden: 1024\nheads: 16\nvocab: 50257\nmax_sequence: 1024\n')
        return path

    def test_a_model_name_cannot_leave_its_comment(self):
        model = self.model(r"x\ntouch PWNED\n#")
        self.expect_error(2, ["model.yaml:2", "cannot be printed"], "suggest", "--model", model, "--gpus", "8",
                          "--dataset-tokens", "1e9", "--write", self.folder / "torchrun.sh")

    def test_commands_to_copy_are_quoted(self):
        folder = self.folder / "$(touch PWNED)"
        folder.mkdir()
        self.model("plain").rename(folder / "model.yaml")
        done = self.run_lockstep("suggest", "--model", folder / "model.yaml", "--gpus", "8", "--dataset-tokens", "1e9",
                                 "--write", self.folder / "job.yaml")
        self.assertEqual(done.returncode, 0, done.stderr)
        line = [text for text in done.stdout.splitlines() if text.startswith("Next: ")][-1]
        self.assertIn("'", line)
        self.assertNotIn(" " + str(folder), line)

    def test_control_characters_in_a_job_name_are_refused(self):
        job = self.text_job(steps=2)
        job.write_text(job.read_text()[:-1] + r', "name": "a\u001b[2Jb"}')
        self.expect_error(2, ["cannot be printed", r"\x1b"], "train", job)

    def test_a_job_that_is_not_utf8_is_refused_in_a_line(self):
        job = self.folder / "latin.yaml"
        job.write_bytes(b"# x\nname: caf\xe9\nmodel: gpt2-124m\n")
        self.expect_error(2, ["latin.yaml:2", "not UTF-8"], "train", job)


class Numbers(Drill):
    def test_counts_that_overflow_are_refused(self):
        job = self.text_job(ranks=2, steps=2)
        self.expect_error(2, ["tokens"], "train", job, "tokens=9223372036854775807")
        self.expect_error(2, ["timeout is longer than a year"], "train", job, "communication.timeout=110000d")

    def test_a_cluster_that_would_fill_the_machine_is_refused(self):
        self.expect_error(3, ["1000000 ranks", "on this machine"], "train", self.text_job(ranks=2, steps=2),
                          "cluster=1000x1000xcpu")

    def test_nodes_that_run_here_are_noted(self):
        done = self.run_lockstep("train", self.text_job(ranks=2, steps=2), "cluster=2x1xcpu")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("all 2 nodes", done.stderr)

    def test_a_slurm_step_without_nodes_is_bad_input(self):
        self.expect_error(2, ["SLURM_STEP_NUM_NODES"], "train", self.text_job(ranks=2, steps=2), environment={
            "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "0"})

    def test_a_comparison_holds_the_cluster_that_was_named(self):
        done = self.run_lockstep("plan", "--model", "llama2-13b", "--cluster", "2x8xA100", "--compare", "4x8xA10G",
                                 "--tokens", "1B", "--json")
        self.assertEqual(len(json.loads(done.stdout)["options"]), 2, done.stdout[:500] + done.stderr)

    def test_no_record_needs_no_home(self):
        self.environment["LOCKSTEP_HOME"] = "/dev/null/home"
        self.environment["TMPDIR"] = str(self.folder)
        done = self.run_lockstep("train", self.text_job(ranks=2, steps=2), "--no-record", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)


class Files(Drill):
    def changed_in_mid_run(self, change):
        job = self.text_job(ranks=2, steps=3000)
        process = self.start("train", job)
        wait_for(lambda: self.recorded_steps() > 3)
        change(self.folder / "text.txt")
        (code, out, err), = self.finish([process])
        self.assertEqual(code, 4, out + err)
        self.assertIn("text.txt", err)
        self.assertIn("was changed while the run reads it", err)

    def test_a_data_file_that_shrinks_is_named(self):
        self.changed_in_mid_run(lambda path: os.truncate(path, 100))

    def test_a_data_file_that_is_rewritten_is_named(self):
        def rewrite(path):
            with open(path, "r+b") as file:
                file.write(b"a" * path.stat().st_size)
        self.changed_in_mid_run(rewrite)


class Trials(Drill):
    def tune(self, *arguments):
        (self.folder / "space.yaml").write_text("knobs:\n  a: {int: [1, 8]}\n")
        done = self.run_lockstep("tune", "--space", self.folder / "space.yaml", *arguments, "--json", timeout=300)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        return json.loads(done.stdout.strip().splitlines()[-1])

    def script(self, text):
        path = self.folder / "trial.py"
        path.write_text("import json, sys\n" + text)
        return f"{sys.executable} {path}"

    def test_a_deep_answer_fails_the_trial_alone(self):
        worker = self.script("for line in sys.stdin:\n"
                             "    trial = json.loads(line)\n"
                             "    bad = trial['trial'] == 1\n"
                             "    print('{\"samples\":' + ('[' * 100000 + ']' * 100000 if bad else '[5.0]') + '}', flush=True)\n")
        self.assertEqual(self.tune("--worker", worker, "--trials", "4")["failed"], 1)

    def test_a_throughput_of_1e308_fails_the_trial_alone(self):
        worker = self.script("for line in sys.stdin:\n"
                             "    trial = json.loads(line)\n"
                             "    print(json.dumps({'samples': [1e308 if trial['trial'] == 1 else 5.0]}), flush=True)\n")
        self.assertEqual(self.tune("--worker", worker, "--trials", "4")["failed"], 1)

    def test_a_million_lines_are_read_in_linear_time(self):
        command = self.script("print('throughput: 5.0\\n' * 1000000)\n")
        began = time.monotonic()
        self.assertEqual(self.tune("--command", command, "--trials", "1", "--trial-seconds", "200")["failed"], 0)
        print(f"a million lines: {time.monotonic() - began:.1f} s")

    def test_a_program_that_never_stops_printing_takes_little_memory(self):
        (self.folder / "space.yaml").write_text("knobs:\n  a: {int: [1, 8]}\n")
        program = ["tune", "--space", str(self.folder / "space.yaml"), "--command", "yes", "--trials", "1",
                   "--trial-seconds", "4", "--json"]
        measure = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, "
                   "stderr=subprocess.DEVNULL); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
        done = subprocess.run([sys.executable, "-c", measure, LOCKSTEP, *program], cwd=self.folder, env=self.environment,
                              capture_output=True, text=True, timeout=240)
        self.assertLess(int(done.stdout), 150_000, done.stderr)  # KiB


if __name__ == "__main__":
    unittest.main(verbosity=2)
