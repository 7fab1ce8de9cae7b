"""`lockstep tune` as a user runs it: real workers and commands, kills, resumes, Ctrl-C. Needs no engine."""
import csv
import json
import pathlib
import random
import signal
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "end_to_end"))
from harness import SOURCE, EndToEnd, timing  # noqa: E402

TUNE = SOURCE / "tests" / "tune"
SPACE = TUNE / "synthetic_space.yaml"
WORKER = f"{sys.executable} {TUNE / 'synthetic_worker.py'}"

# A training script in small: out of memory from micro-batch 16 on, a crash and a hang for some loaders.
SCRIPT = """
import os, sys, time
micro, workers = int(sys.argv[1]), int(os.environ["LOCKSTEP_KNOB_NUM_WORKERS"])
if micro >= 16: sys.exit("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")
if workers == 5: raise ValueError("five workers")
if workers == 7: print("about to hang", flush=True); time.sleep(100000)
for step in range(8):
    print(f"step {step} tokens_per_second={1000 * micro / (micro + 2) * (1 + 0.01 * (step % 3))}", flush=True)
"""


class TuneCase(EndToEnd):
    def tune(self, *arguments, expect=0, timeout=600):
        done = self.run_lockstep("tune", *arguments, "--json", timeout=timeout)
        self.assertEqual(done.returncode, expect, done.stdout[-2000:] + done.stderr[-4000:])
        return json.loads(done.stdout.strip().splitlines()[-1])

    def study(self, worker="", *arguments, trials=16, **options):
        return self.tune("--space", SPACE, "--worker", f"{WORKER} {worker}", "--trials", trials, *arguments, **options)

    def history(self, study="last"):
        """Every trial of a study, without when it was."""
        done = self.run_lockstep("tune", "--show", study, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        trials = json.loads(done.stdout)["history"]
        for trial in trials:
            trial.pop("started_at")
        return trials


class Tune(TuneCase):
    # --- what comes out ----------------------------------------------------------------------------------------------
    def test_a_study_finds_a_faster_setting_and_says_how_sure_it_is(self):
        found = self.study("--seed 3", trials=30)
        self.assertEqual(found["schema"], "lockstep.study/1")
        self.assertEqual(found["trials"], 30)
        best = found["best"]
        self.assertLessEqual(best["low"], best["estimate"])
        self.assertLessEqual(best["estimate"], best["high"])
        self.assertGreaterEqual(best["config"]["micro_batch"], 4)
        self.assertIsInstance(found["importance"], list)
        trials = self.history()
        self.assertEqual([trial["trial"] for trial in trials], list(range(30)))
        self.assertEqual(trials[0]["purpose"], "baseline")
        self.assertTrue(found["default_given"])
        self.assertIsNotNone(found["gain_percent"])
        self.assertEqual(sum(trial["outcome"] != "measured" for trial in trials), found["failed"])

    def without_a_default(self):
        """The same space, but nobody says what one knob is by default."""
        path = self.folder / "no_default.yaml"
        path.write_text(SPACE.read_text().replace("choices: [1, 2, 4, 8], default: 2,", "choices: [1, 2, 4, 8],"))
        self.assertNotEqual(path.read_text(), SPACE.read_text())
        return path

    def test_without_a_default_there_is_no_baseline_but_the_median_of_what_was_tried(self):
        space = self.without_a_default()
        found = self.tune("--space", space, "--worker", WORKER, "--trials", 12)
        trials = self.history()
        self.assertEqual(trials[0]["purpose"], "explore")
        self.assertFalse({"baseline", "control", "set_back"} & {trial["purpose"] for trial in trials})
        self.assertFalse(found["default_given"])
        self.assertIsNone(found["baseline"])
        self.assertIsNone(found["gain_percent"])
        self.assertGreater(found["best"]["estimate"], found["median"]["value"])
        shown = self.run_lockstep("tune", "--show").stdout
        self.assertRegex(shown, r"no default given; \+\d+\.\d% over the median of what was tried")
        plan = self.tune("--space", space, "--worker", "/no/such/program", "--dry-run")
        self.assertEqual(plan["proposals"][0]["purpose"], "explore")

    def test_people_see_a_line_per_trial_and_the_next_command(self):
        done = self.run_lockstep("tune", "--space", SPACE, "--worker", WORKER, "--trials", 8)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("baseline", done.stdout)
        self.assertRegex(done.stdout, r"\n +7  ")
        self.assertRegex(done.stdout, r"Next: lockstep recipe 20\d+-\d+-\w+-synthetic_space")

    def test_the_same_seed_gives_the_same_study(self):
        first, second = self.study(trials=10), self.study(trials=10)
        self.assertEqual(first["best"], second["best"])
        self.assertNotEqual(self.study("", "--seed", 5, trials=10)["best"], None)

    # --- several objectives, earlier studies, early stops ------------------------------------------------------------
    def test_two_objectives_give_a_front_that_can_be_looked_at(self):
        found = self.study("--memory", "--objective", "tokens_per_second,memory", trials=20)
        points = found["front"]["points"]
        self.assertGreaterEqual(len(points), 2)
        speeds = [point["values"]["tokens_per_second"]["value"] for point in points]
        memories = [point["values"]["memory"]["value"] for point in points]
        self.assertEqual(speeds, sorted(speeds, reverse=True))
        self.assertEqual(memories, sorted(memories, reverse=True), "less speed buys less memory")
        self.assertEqual(found["best"]["config"], points[0]["config"])
        self.assertEqual(sum(trial["purpose"] == "confirm" for trial in self.history()), 4)
        shown = self.run_lockstep("tune", "--show").stdout
        self.assertIn("front: nothing that was tried is better in all of these", shown)
        self.assertIn("GiB memory", shown)
        self.assertEqual(self.run_lockstep("recipe", "last", "--output", "page", "--full").returncode, 0)
        self.assertIn("What can be had together", (self.folder / "page" / "study_page.html").read_text())
        self.expect_error(2, ["--usd-per-gpu-hour"], "tune", "--space", SPACE, "--worker", WORKER, "--objective", "dollars")

    def test_a_trial_without_a_figure_that_is_an_objective_is_a_failure(self):
        self.tune("--space", SPACE, "--worker", WORKER, "--objective", "memory", "--trials", 8, expect=1)

    def test_an_earlier_study_is_evidence_and_stays_with_the_study(self):
        self.study("", "--name", "first", trials=12)
        self.assertEqual(self.run_lockstep("tune", "--export", "csv:trials.csv").returncode, 0)
        command = ("tune", "--space", SPACE, "--worker", WORKER, "--trials", 6, "--transfer")
        done = self.run_lockstep(*command, "trials.csv")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("earlier study trials.csv: 12 of its 12 trials have a place in this space", done.stdout)
        (self.folder / "trials.csv").unlink()
        self.assertEqual(self.tune("--resume", "--trials", 8)["trials"], 8)
        self.assertEqual(self.run_lockstep(*command, "last").returncode, 0)
        (self.folder / "other.csv").write_text("value,params_unheard_of\n")
        self.expect_error(2, ["none of its 0 trials"], *command, "other.csv")

    def test_a_hopeless_trial_of_a_worker_that_reports_is_stopped_and_charged_for_what_it_took(self):
        (self.folder / "worker.py").write_text(
            "import json, os, sys, time\n"
            "for line in sys.stdin:\n"
            "    asked, samples = json.loads(line), []\n"
            "    while len(samples) < 10 and not os.path.exists(asked.get('stop_file', '')):\n"
            "        samples.append((100 if asked['trial'] < 8 else 10) + len(samples) % 2)\n"
            "        print(json.dumps({'trial': asked['trial'], 'sample': samples[-1]}), flush=True)\n"
            "        time.sleep(0.05)\n"
            "    print(json.dumps({'samples': samples, 'seconds': 4 * len(samples)}), flush=True)\n")
        self.tune("--space", SPACE, "--worker", f"{sys.executable} worker.py", "--trials", 16)
        trials = self.history()
        stopped = [trial for trial in trials if trial["stopped_early"]]
        self.assertTrue(stopped)
        for trial in stopped:
            self.assertEqual(trial["purpose"], "explore")
            self.assertLess(trial["gpu_seconds"], 40)
        for trial in trials:
            if trial["purpose"] != "explore" and trial["outcome"] == "measured":
                self.assertEqual(len(trial["samples"]), 10)

    # --- the budget --------------------------------------------------------------------------------------------------
    def test_the_budget_is_never_exceeded(self):
        for worker in ("--seconds 40", "--seconds 40 --honest"):
            found = self.study(worker, "--budget", "20gpu-minutes", "--gpus", 4, trials=60)
            spent = sum(trial["gpu_seconds"] for trial in self.history())
            self.assertLessEqual(spent, 1200)
            self.assertGreater(spent, 1200 - 160 - 1)
            self.assertTrue(found["out_of_budget"])
            for trial in self.history():
                self.assertAlmostEqual(trial["gpu_seconds"], 4 * trial["seconds"])

    def test_a_budget_that_pays_for_fewer_trials_is_said_before_the_first(self):
        def shown(budget):
            done = self.run_lockstep("tune", "--space", SPACE, "--worker", WORKER, "--trials", 12, "--gpus", 2,
                                     "--trial-seconds", 40, "--budget", budget)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout

        short = shown("8gpu-minutes")
        note, trials = short.split("purpose", 1)
        self.assertRegex(note, r"note: 8 GPU-minutes pays for 6 trials of 40\.0 s on 2 GPUs, not for 12")
        self.assertRegex(trials, r"per GPU +\d+ tokens/s")
        self.assertNotIn("pays for", shown("16gpu-minutes"))

    def test_real_seconds_end_a_study_too(self):
        found = self.study("--seconds 0 --sleep 0.3", "--budget", "3gpu-seconds", "--trial-seconds", "2", trials=60)
        self.assertLess(found["trials"], 60)
        self.assertTrue(found["out_of_budget"])

    # --- kills -------------------------------------------------------------------------------------------------------
    def asked(self, log="asked"):
        """Numbers of the trials that the worker was asked for, in order."""
        path = self.folder / log
        return [int(word) for word in path.read_text().split()] if path.exists() else []

    def wait_for_trials(self, process, count, log="asked"):
        while len(self.asked(log)) < count and process.poll() is None:
            time.sleep(0.005)

    def kill_and_resume(self, seed, *arguments, trials):
        """Kills the study again and again at random moments, goes on, and returns its last line and the kills."""
        moments = random.Random(seed)
        start = ("tune", "--space", SPACE, "--worker", f"{WORKER} --sleep 0.02 --seed {seed} --log asked-{seed}",
                 "--trials", trials, "--seed", seed, *arguments, "--json")
        kills = 0
        while True:
            process = self.start(*start, *(("--resume",) if kills > 0 else ()))
            if kills < 4:
                # The first is killed while it starts, the others some trials later, at any point within one.
                seen = len(self.asked(f"asked-{seed}"))
                self.wait_for_trials(process, seen + (moments.randint(1, 5) if kills > 0 else 0), f"asked-{seed}")
                time.sleep(moments.uniform(0, 0.08))
                process.send_signal(signal.SIGKILL)
            out, err = process.communicate(timeout=600)
            if process.returncode == 0:
                return json.loads(out.strip().splitlines()[-1]), kills
            self.assertEqual(process.returncode, -signal.SIGKILL, err)
            kills += 1

    def test_a_killed_study_ends_as_the_undisturbed_one(self):
        for seed, arguments in ((11, ()), (12, ("--budget", "9gpu-minutes"))):
            undisturbed = self.tune("--space", SPACE, "--worker", f"{WORKER} --seed {seed}", "--trials", 20,
                                    "--seed", seed, "--name", "undisturbed", *arguments)
            trials = self.history()
            found, kills = self.kill_and_resume(seed, *arguments, trials=20)
            self.assertEqual(kills, 4)
            self.assertEqual(self.history(), trials)
            for key in ("best", "trials", "failed", "importance", "gain", "baseline", "top", "tied", "interactions"):
                self.assertEqual(found.get(key), undisturbed.get(key), key)

    def test_a_resumed_study_asks_for_no_trial_twice_but_the_one_that_was_cut_off(self):
        process = self.start("tune", "--space", SPACE, "--worker", f"{WORKER} --sleep 0.1 --log asked", "--trials", "14")
        self.wait_for_trials(process, 5)
        process.kill()
        process.communicate()
        self.tune("--resume")
        numbers = self.asked()
        self.assertEqual(sorted(set(numbers)), list(range(14)))
        self.assertLessEqual(len(numbers), 15)
        self.assertEqual(numbers, sorted(numbers))

    def test_ctrl_c_keeps_everything_and_says_how_to_go_on(self):
        process = self.start("tune", "--space", SPACE, "--worker", f"{WORKER} --sleep 0.3 --log asked", "--trials", "12")
        self.wait_for_trials(process, 3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn("lockstep tune --resume", err)
        self.assertGreaterEqual(len(self.history()), 2)
        self.assertEqual(self.tune("--resume")["trials"], 12)

    def test_a_study_may_go_on_with_more_trials(self):
        before = self.study(trials=6)
        self.assertEqual(before["trials"], 6)
        self.assertEqual(self.tune("--resume", "--trials", 9)["trials"], 9)
        self.expect_error(2, ["--seed", "new study"], "tune", "--resume", "--seed", "4")

    # --- what goes wrong ---------------------------------------------------------------------------------------------
    def test_a_worker_that_misbehaves_costs_trials_but_not_the_study(self):
        ways = ["die", "exit", "garbage", "broken", "nan", "empty", "negative", "word", "noise"]
        wrong = " ".join(f"--misbehave {2 * i + 1}:{how}" for i, how in enumerate(ways))
        found = self.study(wrong, trials=20)
        outcomes = {trial["trial"]: trial["outcome"] for trial in self.history()}
        self.assertEqual(outcomes[1], "oom")
        for number in (3, 5, 7, 9, 11, 13, 15):
            self.assertEqual(outcomes[number], "crash", number)
        self.assertEqual(outcomes[17], "measured")
        self.assertIsNotNone(found["best"])

    def test_a_worker_that_cannot_start_is_an_error_that_says_why(self):
        self.expect_error(1, ["no module named torch"], "tune", "--space", SPACE, "--worker",
                          f"{sys.executable} -c \"import sys; sys.exit('no module named torch')\"")
        self.expect_error(4, ["/no/such/worker"], "tune", "--space", SPACE, "--worker", "/no/such/worker")

    def test_wrong_flags_are_answered_with_what_to_do(self):
        (self.folder / "bad.yaml").write_text("knobs:\n  a: {choices: []}\n")
        for pieces, arguments in (
                (["nothing to tune"], []),
                (["--space"], ["--worker", "x"]),
                (["one place"], ["--space", SPACE, "--worker", "x", "--command", "y"]),
                (["did you mean `micro_batch`?"], ["--space", SPACE, "--command", "x {micro_bach}"]),
                (["2gpu-hours"], ["--space", SPACE, "--worker", "x", "--budget", "2hours"]),
                (["bad.yaml:2"], ["--space", "bad.yaml", "--worker", "x"]),
                (["--metric"], ["--space", SPACE, "--worker", "x", "--metric", "y"]),
                (["csv:FILE"], ["--export", "trials.csv"])):
            self.expect_error(2, pieces, "tune", *arguments)

    # --- commands, lanes, exports ------------------------------------------------------------------------------------
    def test_a_command_is_tuned_through_its_arguments_and_environment(self):
        (self.folder / "train.py").write_text(SCRIPT)
        found = self.tune("--space", SPACE, "--command", f"{sys.executable} train.py {{micro_batch}}", "--trials", 14,
                          "--hang-timeout", "5s", "--trial-seconds", 60, "--isolate")
        self.assertIn(found["best"]["config"]["micro_batch"], (4, 8))
        for trial in self.history():
            config = trial["config"]
            expected = ("oom" if config["micro_batch"] >= 16 else "crash" if config["num_workers"] == 5
                        else "hang" if config["num_workers"] == 7 else "measured")
            self.assertEqual(trial["outcome"], expected, trial)

    def test_a_knob_that_the_command_does_not_hand_over_is_named(self):
        for command, hidden in (("true {micro_batch}", True),
                                ("true {micro_batch} {num_workers} {recompute} {prefetch_factor} {bucket_mib}", False)):
            done = self.run_lockstep("tune", "--space", SPACE, "--command", command, "--dry-run")
            self.assertEqual("hands over no num_workers" in done.stderr, hidden, done.stderr)

    def test_a_program_of_constant_throughput_keeps_its_default(self):
        (self.folder / "train.py").write_text("print('tokens_per_second: 1000')\n" * 3)
        self.tune("--space", SPACE, "--command", f"{sys.executable} train.py {{micro_batch}}", "--trials", 10)
        page = self.run_lockstep("recipe", "last").stdout
        self.assertIn("keep the default", page)
        self.assertIn("othing beats the default", page)
        self.assertIn("No knob's effect is larger than the noise.", page)

    def test_lanes_run_trials_at_the_same_time(self):
        found = self.study("--sleep 0.5", "--parallel", 4, "--budget", "60gpu-minutes", trials=12)
        self.assertEqual(found["trials"], 12)
        trials = self.history()
        self.assertEqual([trial["trial"] for trial in trials], list(range(12)))

    def test_a_study_is_listed_shown_and_exported(self):
        self.study("", "--name", "first", trials=4)
        done = self.run_lockstep("tune", "--list")
        self.assertIn("first", done.stdout)
        self.assertIn("lockstep recipe", self.run_lockstep("tune", "--show").stdout)
        self.assertIn("explore", self.run_lockstep("tune", "--show", "last", "--all").stdout)
        self.assertEqual(self.run_lockstep("tune", "--export", "csv:trials.csv").returncode, 0)
        rows = list(csv.DictReader((self.folder / "trials.csv").read_text().splitlines()))
        self.assertEqual(len(rows), 4)
        self.assertEqual(self.run_lockstep("tune", "--export", "optuna:trials.db").returncode, 0)
        self.assertTrue((self.folder / "trials.db").exists())

    def test_a_dry_run_shows_the_space_and_runs_nothing(self):
        done = self.run_lockstep("tune", "--space", SPACE, "--command", "x {micro_batch}", "--dry-run")
        self.assertEqual(done.returncode, 0, done.stderr)
        for piece in ("6 knobs", "valid configurations", "LOCKSTEP_KNOB_NUM_WORKERS", "environment", "the default"):
            self.assertIn(piece, done.stdout)
        plan = self.tune("--space", SPACE, "--worker", "/no/such/program", "--dry-run")
        self.assertEqual(plan["proposals"][0]["purpose"], "baseline")
        self.assertEqual(self.run_lockstep("tune", "--list").returncode, 4)


@timing
class TuneTiming(TuneCase):
    def test_the_budget_holds_in_real_seconds(self):
        begun = time.monotonic()
        self.study("--seconds 0 --sleep 0.3", "--budget", "3gpu-seconds", "--trial-seconds", "2", trials=60)
        self.assertLessEqual(sum(trial["gpu_seconds"] for trial in self.history()), 3.1)
        self.assertLess(time.monotonic() - begun, 20)

    def test_lanes_save_time(self):
        begun = time.monotonic()
        self.study("--sleep 0.5", "--parallel", 4, "--budget", "60gpu-minutes", trials=12)
        self.assertLess(time.monotonic() - begun, 12 * 0.5 + 15)


if __name__ == "__main__":
    unittest.main()
