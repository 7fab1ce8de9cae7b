"""`lockstep plan` as a user runs it: figures on the terminal, JSON, exit codes. Needs no engine."""
import json
import pathlib
import re
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "end_to_end"))
from harness import SOURCE, EndToEnd, timing  # noqa: E402

UTF8 = {"LC_ALL": "C.UTF-8"}


class Plan(EndToEnd):
    def plan(self, *arguments, expect=0, environment=None):
        done = self.run_lockstep("plan", *arguments, environment=environment)
        self.assertEqual(done.returncode, expect, done.stdout[-2000:] + done.stderr[-2000:])
        return done.stdout

    def plan_json(self, *arguments):
        return json.loads(self.plan(*arguments, "--json"))

    # --- one plan ----------------------------------------------------------------------------------------------------
    def test_text_says_what_why_who_lost_and_what_if(self):
        text = self.plan("--model", "llama2-13b", "--cluster", "4x8xH100", "--tokens", "20B", "--passes", environment=UTF8)
        for heading in ("layout", "speed", "MFU", "job", "checkpoints", "bottleneck", "Memory per GPU", "Time of a step", "Why",
                        "What lost", "What if", "Search", "enumerate", "Next: lockstep plan"):
            self.assertIn(heading, text)
        self.assertNotIn("\x1b[", text, "colours are for terminals")
        self.assertIn("█", text)

    def test_without_utf8_the_page_is_ascii(self):
        for arguments in (("--cluster", "4x8xH100", "--fix", "pp=2"), ("--cluster", "1x8xH100", "--scaling", "8,16"),
                          ("--compare", "4x8xH100,4x8xA100")):
            text = self.plan("--model", "llama2-13b", *arguments, environment={"LC_ALL": "C"})
            self.assertTrue(text.isascii(), [c for c in text if not c.isascii()][:10])

    def test_a_pipeline_is_drawn(self):
        text = self.plan("--model", "llama2-13b", "--cluster", "4x8xH100", "--fix", "pp=4,schedule=1f1b", environment=UTF8)
        rows = re.findall(r"^  stage +(\d+) ([0-9a-jw·]+)$", text, re.M)
        self.assertEqual([int(stage) for stage, _ in rows], [0, 1, 2, 3])
        self.assertTrue(rows[3][1].startswith("···"), "the last stage waits first")

    def test_json_keeps_the_documented_keys(self):
        document = self.plan_json("--model", "llama2-13b", "--cluster", "4x8xH100", "--tokens", "300B")
        self.assertEqual(document["schema"], "lockstep.plan/1")
        best = document["best"]
        self.assertLessEqual({"pp", "dp", "shard", "zero", "cp", "tp", "ep"}, set(best["layout"]))
        self.assertLessEqual({"micro", "accumulation", "global_sequences", "sequence_length"}, set(best["batch"]))
        self.assertLessEqual({"total", "parameters", "gradients", "optimizer", "activations", "buffers", "overhead",
                              "capacity"}, set(best["memory_gib"]))
        for key in ("tokens_per_second", "tokens_per_second_per_gpu", "step_seconds", "mfu"):
            interval = best["prediction"]["intervals"][key]
            self.assertLess(interval["low"], interval["expected"])
            self.assertLess(interval["expected"], interval["high"])
            self.assertEqual(interval["expected"], best["prediction"][key])
        self.assertLessEqual({"compute", "tp_comm", "dp_comm", "pp_comm", "bubble", "optimizer", "other"},
                             set(best["breakdown_seconds"]))
        self.assertAlmostEqual(sum(best["breakdown_seconds"].values()), best["prediction"]["step_seconds"], places=6)
        self.assertLessEqual({"gpu_hours", "usd", "days"}, set(best["cost"]))
        self.assertLessEqual({"interval_seconds", "expected_lost_seconds", "goodput"}, set(best["checkpoint"]))
        self.assertTrue(best["reasons"])
        self.assertEqual(len(document["alternatives"]), 3)
        self.assertTrue(all(loser["why_not"] for loser in document["alternatives"]))
        self.assertLessEqual({"candidates", "feasible", "seconds"}, set(document["search"]))
        for key in ("bottleneck", "what_ifs", "passes", "stages", "pareto"):
            self.assertIn(key, document)

    def test_a_micro_batch_on_the_command_line_is_kept_or_refused_with_the_reason(self):
        job = SOURCE / "specs" / "jobs" / "llama-1b-h200.yaml"
        kept = self.plan_json(job, "batch.micro=8", "batch.accumulation=4", "--no-what-if")["best"]["batch"]
        self.assertEqual((kept["micro"], kept["accumulation"]), (8, 4))
        self.expect_error(3, ["at micro-batch 512 needs", "too much", "nearest that fits (another micro-batch)"],
                          "plan", job, "batch.micro=512")
        self.expect_error(2, ["micro-batch 3 does not divide a global batch of 16 over 1 data ranks"],
                          "plan", job, "--micro", "3")

    def test_a_plan_file_is_written_and_read_by_train(self):
        (self.folder / "text.txt").write_text("the wolf and the lamb " * 400)
        job = self.folder / "job.yaml"
        job.write_text(json.dumps({
            "model": {"arch": "gpt", "layers": 2, "hidden": 32, "heads": 2, "vocab": 256, "max_sequence": 32},
            "cluster": "1x2xcpu", "data": {"kind": "text", "path": str(self.folder / "text.txt")},
            "batch": {"micro": 2, "sequence_length": 32}, "steps": 1}))
        saved = self.plan("--model", "llama2-7b", "--cluster", "1x8xH100", "--output", "plan.json", "--json")
        self.assertEqual(json.loads((self.folder / "plan.json").read_text())["best"], json.loads(saved)["best"])
        error = self.expect_error(2, ["is a plan for llama2-7b"], "train", job, "--plan", "plan.json", "--dry-run")
        self.assertIn("plan.json", error)

    # --- exit codes --------------------------------------------------------------------------------------------------
    def test_a_layout_that_does_not_fit_exits_3_with_term_excess_and_fix(self):
        self.expect_error(3, ["dp=32", "optimizer state", "too much", "nearest that fits", "shard="], "plan", "--model",
                          "llama2-13b", "--cluster", "4x8xH100", "--layout", "dp=32")

    def test_a_model_that_fits_nowhere_on_the_cluster_exits_3_and_names_one_that_holds_it(self):
        self.expect_error(3, ["does not fit", "too much", "nodes of 8 x A10G"], "plan", "--model", "gpt-100b",
                          "--cluster", "1x8xA10G")

    def test_nonsense_exits_2(self):
        good = ("--model", "llama2-13b", "--cluster", "4x8xH100")
        for pieces, arguments in ((["llama2-13b"], ("--model", "llama2-13", "--cluster", "4x8xH100")),
                                  (["H100"], ("--model", "llama2-13b", "--cluster", "4x8xH1000")),
                                  (["model and a cluster"], ()),
                                  (["--fix", "tp"], (*good, "--fix", "ttp=8")),
                                  (["layout"], (*good, "--layout", "dp=31,tpp=2")),
                                  (["64 ranks"], (*good, "--layout", "dp=64")),
                                  (["heads"], (*good, "--layout", "dp=4,tp=3")),
                                  (["--deadline"], (*good, "--deadline", "soon")),
                                  (["--scaling"], (*good, "--scaling", "many")),
                                  (["12 devices"], (*good, "--scaling", "8,12")),
                                  (["--objective"], (*good, "--objective", "speed")),
                                  (["one or the other"], (*good, "--layout", "dp=32", "--fix", "tp=1")),
                                  (["batch.micro=2"], ("batch.micro=2",))):
            with self.subTest(arguments=arguments):
                self.expect_error(2, pieces, "plan", *arguments)

    def test_errors_are_json_too(self):
        done = self.run_lockstep("plan", "--model", "gpt-100b", "--cluster", "1x1xA10G", "--json")
        self.assertEqual(done.returncode, 3)
        self.assertEqual(json.loads(done.stdout)["exit_code"], 3)

    def test_usage_errors_are_json_too(self):
        for arguments in (("plan", "--bogus"), ("plaan",), ("plan", "--model", "llama2-13b", "--seq", "0")):
            done = self.run_lockstep(*arguments, "--json")
            self.assertEqual(done.returncode, 2)
            self.assertEqual(json.loads(done.stdout)["schema"], "lockstep.error/1")
            self.assertLess(len(done.stderr), 120)

    def test_a_deadline_that_is_missed_exits_3_after_the_page(self):
        common = ("--model", "llama2-13b", "--tokens", "300B", "--deadline", "1d", "--no-what-if")
        done = self.run_lockstep("plan", *common, "--cluster", "4x8xH100")
        self.assertEqual(done.returncode, 3)
        self.assertIn("misses", done.stdout)
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn("deadline", done.stderr)
        self.assertIn("none ends within", self.plan(*common, "--compare", "1x8xH100,4x8xH100", expect=3))
        self.plan(*common[:-3], "--deadline", "2000d", "--cluster", "4x8xH100", "--no-what-if")

    # --- questions ---------------------------------------------------------------------------------------------------
    def test_a_given_layout_is_priced_as_given(self):
        document = self.plan_json("--model", "llama2-13b", "--cluster", "4x8xH100", "--layout",
                                  "dp=4,shard=8,recompute=full", "--micro", "2")
        best = document["best"]
        self.assertEqual((best["layout"]["dp"], best["layout"]["shard"], best["layout"]["zero"]), (4, 8, 3))
        self.assertEqual((best["batch"]["micro"], best["recompute"]), (2, "full"))

    def test_batch_in_sequences_or_tokens_and_sequence_length(self):
        common = ("--model", "llama2-7b", "--cluster", "1x8xH100", "--seq", "2048", "--no-what-if")
        sequences = self.plan_json(*common, "--global-batch", "256")["best"]["batch"]
        tokens = self.plan_json(*common, "--global-batch", "524288 tokens")["best"]["batch"]
        self.assertEqual(sequences["global_sequences"], 256)
        self.assertEqual(tokens, sequences)
        self.assertEqual(sequences["sequence_length"], 2048)

    def test_switching_passes_off_changes_no_answer(self):
        common = ("--model", "llama2-7b", "--cluster", "1x8xH100", "--no-what-if")
        fast, slow = self.plan_json(*common), self.plan_json(*common, "--switch-off", "floor,outgrow")
        self.assertEqual(fast["best"], slow["best"])

    def test_money_is_an_objective(self):
        common = ("--model", "gpt2-124m", "--cluster", "8x8xA100", "--global-batch", "512", "--tokens", "10B", "--no-what-if")
        fastest = self.plan_json(*common)["best"]
        cheapest = self.plan_json(*common, "--objective", "dollars")["best"]
        self.assertLess(cheapest["cost"]["usd"], fastest["cost"]["usd"])
        self.assertGreater(cheapest["cost"]["days"], fastest["cost"]["days"])

    def test_a_hard_cap_on_lost_work_is_kept(self):
        for cap, seconds in (("30m", 1800), ("10m", 600)):
            best = self.plan_json("--model", "llama2-7b", "--cluster", "2x8xH100", "--max-lost", cap, "--no-what-if")["best"]
            self.assertLessEqual(best["checkpoint"]["worst_lost_seconds"], seconds)

    def test_a_cap_on_lost_work_that_cannot_be_kept_exits_3_with_reason_and_remedy(self):
        asked = ("plan", "--model", "llama2-13b", "--cluster", "4x8xH100", "--no-what-if", "--max-lost")
        done = self.run_lockstep(*asked, "60s")
        self.assertEqual(done.returncode, 3, done.stdout[-500:] + done.stderr)
        self.assertRegex(done.stderr, r"the bound on lost work cannot be kept: a failure may cost .*, allowed are 1m 0s")
        self.assertRegex(done.stderr, r"storage writes 4.00 GB/s")
        self.assertRegex(done.stderr, r"storage that writes .* keeps it|steps of at most .* keep it")
        allowed = re.search(r"allow (\d+s) \(--max-lost", done.stderr)[1]
        self.plan(*asked[1:], allowed)  # what it says is enough is enough

    def test_a_job_brings_its_own_cap_on_lost_work(self):
        job = SOURCE / "specs/jobs/llama2-13b-32xH100.yaml"
        self.plan(job, "--no-what-if")
        self.plan(job, "checkpoint.max_lost=60s", "--no-what-if", expect=3)
        self.plan(job, "checkpoint.max_lost=60s", "checkpoint.every=10m", "--no-what-if")  # the file fixes how often

    def test_the_assumption_that_matters_most_is_named_with_what_settles_it(self):
        document = self.plan_json("--model", "llama2-13b", "--cluster", "4x8xH100", "--no-what-if")
        first = document["sensitivity"]["assumptions"][0]
        self.assertLess(first["low"], first["high"])
        self.assertGreater(max(abs(first["time_at_low"]), abs(first["time_at_high"])), 0.01)
        text = self.plan("--model", "llama2-13b", "--cluster", "4x8xH100", "--no-what-if")
        self.assertIn("What it rests on", text)
        self.assertIn(f"Most sensitive to: {first['name']}", text)
        self.assertIn(first["command"], re.sub(r"\s+", " ", text))
        path = self.folder / "plan.json"
        self.plan("--model", "llama2-13b", "--cluster", "4x8xH100", "--no-what-if", "--output", path)
        self.assertEqual(json.loads(path.read_text())["sensitivity"], document["sensitivity"])

    def test_unlike_groups_from_the_example_file(self):
        document = self.plan_json("--model", "gpt-10b", "--cluster", SOURCE / "specs/examples/h100-ib-and-a100-roce.yaml",
                                  "--no-what-if")
        self.assertEqual(len(document["cluster"]["groups"]), 2)
        self.assertLess(document["best"]["memory_gib"]["total"], document["best"]["memory_gib"]["capacity"])

    # --- several at once ---------------------------------------------------------------------------------------------
    def test_comparison_is_a_matrix_with_a_verdict(self):
        arguments = ("--model", "llama2-13b", "--compare", "4x8xA100,16x8xA10G", "--tokens", "20B", "--deadline", "14d")
        text = self.plan(*arguments)
        for piece in ("4x8xA100", "16x8xA10G", "USD", "in time", "Verdict"):
            self.assertIn(piece, text)
        document = self.plan_json(*arguments)
        self.assertEqual(document["schema"], "lockstep.comparison/1")
        self.assertEqual([option["cluster"] for option in document["options"]], ["4x8xA100", "16x8xA10G"])
        for option in document["options"]:
            self.assertIsInstance(option["meets_deadline"], bool)
            self.assertGreater(option["best"]["usd"], 0)
        self.assertTrue(document["verdict"])

    def test_a_comparison_holds_the_cluster_that_was_named_too(self):
        document = self.plan_json("--model", "llama2-13b", "--cluster", "8x8xA100", "--compare", "16x8xA10G", "--tokens", "300B")
        self.assertEqual([option["cluster"] for option in document["options"]], ["8x8xA100", "16x8xA10G"])
        self.assertTrue(document["verdict"].startswith("8x8xA100"), document["verdict"])

    def test_comparison_where_nothing_fits_exits_3(self):
        self.plan("--model", "gpt3-175b", "--compare", "1x1xA10G,1x2xA10G", expect=3)

    def test_scaling_is_a_table_a_plot_and_a_mark(self):
        arguments = ("--model", "gpt2-124m", "--cluster", "1x8xA100", "--global-batch", "512", "--scaling", "8,16,...,256")
        text = self.plan(*arguments, environment=UTF8)
        self.assertIn("strong scaling", text)
        self.assertIn("efficiency", text)
        document = self.plan_json(*arguments)
        self.assertEqual(document["schema"], "lockstep.scaling/1")
        self.assertEqual([point["devices"] for point in document["points"]], [8, 16, 32, 64, 128, 256])
        self.assertEqual(document["points"][0]["efficiency"], 1.0)
        below = [point["devices"] for point in document["points"] if point["efficiency"] < document["good_efficiency"]]
        self.assertEqual(document["falls_below"], below[0] if below else None)
        if below:
            self.assertIn(f"below 90% at {below[0]} GPUs", text)

    def test_output_takes_comparisons_and_scalings(self):
        for name, arguments in (("comparison", ("--compare", "1x8xA100,1x8xH100")),
                                ("scaling", ("--cluster", "1x8xA100", "--scaling", "8,16"))):
            self.plan("--model", "gpt2-124m", "--global-batch", "512", *arguments, "--output", "answer.json")
            self.assertEqual(json.loads((self.folder / "answer.json").read_text())["schema"], f"lockstep.{name}/1")

    def test_what_lost_can_be_pasted(self):
        common = ("--model", "llama2-13b", "--cluster", "4x8xH100", "--no-what-if")
        losers = re.findall(r"--layout\s+(\S+)\s+--micro\s+(\d+):", self.plan(*common).split("What lost")[1])
        self.assertEqual(len(losers), 3)
        document = self.plan_json(*common)
        for (layout, micro), loser in zip(losers, document["alternatives"]):
            pasted = self.plan_json(*common, "--layout", layout, "--micro", micro)["best"]
            self.assertEqual(pasted["layout"], loser["layout"])
            # Given, it was not chosen: it is priced without what choosing costs.
            self.assertNotIn("selection", pasted["breakdown_seconds"])
            chosen = loser["breakdown_seconds"]["selection"]
            self.assertGreater(chosen, 0)
            self.assertAlmostEqual(pasted["prediction"]["step_seconds"] / (loser["prediction"]["step_seconds"] - chosen), 1)

    def test_help_has_examples_and_the_unit_of_the_batch(self):
        text = self.plan("--help")
        self.assertIn("Examples:", text)
        self.assertIn("SEQUENCES", text)
        self.assertIn("--compare", self.run_lockstep("completion", "bash").stdout)


@timing
class PlanTiming(EndToEnd):
    def test_a_plan_takes_a_blink(self):
        best = min(self.seconds("plan", "--model", "llama2-13b", "--cluster", "4x8xH100") for _ in range(3))
        self.assertLess(best, 0.3)

    def seconds(self, *arguments):
        start = time.monotonic()
        self.run_lockstep(*arguments)
        return time.monotonic() - start


if __name__ == "__main__":
    unittest.main()
