"""`lockstep predict` as a user runs it: real files in, real files out. Needs no engine."""
import csv
import io
import json
import os
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "end_to_end"))
from harness import SOURCE, EndToEnd  # noqa: E402

PUBLISHED = SOURCE / "validation" / "published"
APPENDED = ["predicted_tokens_per_s_per_gpu", "predicted_low", "predicted_high", "predicted_mem_gib",
            "predicted_fits", "note"]
FILES = ["throughput.csv", "grid_h100_ok.csv", "grid_h100_failed.csv", "vtrain_a100.csv"]


def read(text):
    return list(csv.reader(io.StringIO(text)))


class Predict(EndToEnd):
    def predict(self, rows, *arguments, expect=0):
        done = self.run_lockstep("predict", "--rows", rows, *arguments)
        self.assertEqual(done.returncode, expect, done.stdout[-2000:] + done.stderr[-2000:])
        return done

    def write(self, text, name="rows.csv"):
        path = self.folder / name
        path.write_text(text)
        return path

    def test_every_published_row_gets_a_prediction_or_a_note(self):
        for name in FILES:
            self.predict(PUBLISHED / name, "--output", "out.csv")
            before = read((PUBLISHED / name).read_text())
            after = read((self.folder / "out.csv").read_text())
            self.assertEqual(after[0], before[0] + APPENDED)
            self.assertEqual([row[:len(before[0])] for row in after], before)
            for row in after[1:]:
                rate, low, high, memory, fits, note = row[-6:]
                if rate:
                    self.assertLessEqual(float(low), float(rate), row[0])
                    self.assertLessEqual(float(rate), float(high), row[0])
                    self.assertGreater(float(low), 0, row[0])
                    self.assertGreater(float(memory), 0, row[0])
                    self.assertIn(fits, ("true", "false"))
                else:
                    self.assertTrue(note, row[0])

    def test_a_column_with_a_slip_in_its_name_is_pointed_at(self):
        done = self.predict(self.write("model,hardware,gpus,global_batch,remark\nllama2-7b,H100,8,64,mine\n"))
        self.assertIn("note: column global_batch is not read; did you mean `global_batch_seqs`?", done.stderr)
        self.assertNotIn("column remark", done.stderr)
        for name in FILES:
            self.assertNotIn("is not read", self.predict(PUBLISHED / name, "--output", "out.csv").stderr)

    def test_observed_runs_condition_the_others_and_are_kept(self):
        columns = ("id,hardware,gpus,model,seq_len,global_batch_seqs,micro_batch,sharding,act_ckpt,precision,"
                   "tokens_per_s_per_gpu\n")
        rows = self.write(columns + "x,H100,16,llama2-7b,4096,128,1,fsdp,full,bf16,\n")
        seen = self.write(columns + "a,H100,8,llama2-7b,4096,64,2,fsdp,selective,bf16,7000\n", "seen.csv")

        def rate(*arguments):
            done = self.predict(rows, "--output", "out.csv", *arguments)
            row = dict(zip(*read((self.folder / "out.csv").read_text())))
            return [float(row[f"predicted_{key}"]) for key in ("tokens_per_s_per_gpu", "low", "high")], done.stdout

        before, _ = rate()
        after, text = rate("--observed", seen)
        self.assertLess(after[0], 0.95 * before[0])
        # By 0.8 over both sides; looked at below, since what is possible cuts the upper side of the first.
        self.assertLess(after[0] / after[1], 0.8**0.5 * before[0] / before[1])
        self.assertIn("conditioned on 1 observed run: a\n", text)
        self.assertEqual(self.run_lockstep("observe", "--rows", seen).returncode, 0)
        self.assertEqual(rate()[0], after)
        self.assertEqual(rate("--no-observations")[0], before)
        shown = json.loads(self.run_lockstep("profile", "show", "--gpu", "H100", "--json").stdout)
        self.assertEqual([run["run"] for run in shown["runs"]], ["a"])
        self.assertTrue(shown["constants"])
        plan = self.run_lockstep("plan", "--model", "llama2-7b", "--cluster", "1x8xH100", "--json").stdout
        self.assertIn("1 observed run: a", plan)
        self.assertEqual(self.run_lockstep("profile", "forget", "a").returncode, 0)
        self.assertEqual(rate()[0], before)
        self.assertEqual(self.run_lockstep("profile", "forget", "a").returncode, 2)

    def test_a_dash_prints_the_table_and_nothing_else(self):
        done = self.predict(PUBLISHED / "vtrain_a100.csv", "--output", "-")
        self.assertEqual(len(read(done.stdout)), 754)
        self.assertIn("753 priced", done.stderr)

    def test_json_on_stdout_only(self):
        done = self.predict(PUBLISHED / "vtrain_a100.csv", "--json")
        summary = json.loads(done.stdout)
        self.assertEqual(summary["schema"], "lockstep.predict/1")
        self.assertEqual(len(summary["predictions"]), 753)
        self.assertEqual(set(summary["predictions"][0]["tokens_per_second_per_gpu"]), {"low", "expected", "high"})
        done = self.predict(PUBLISHED / "vtrain_a100.csv", "--json", "--output", "out.csv")
        self.assertNotIn("predictions", json.loads(done.stdout))

    def test_columns_of_an_earlier_output_are_overwritten(self):
        self.predict(PUBLISHED / "vtrain_a100.csv", "--output", "once.csv")
        self.predict(self.folder / "once.csv", "--output", "twice.csv")
        self.assertEqual((self.folder / "once.csv").read_text(), (self.folder / "twice.csv").read_text())

    def test_one_column_is_enough_for_a_note(self):
        done = self.predict(self.write("model\nllama\n"), "--output", "-")
        self.assertEqual(read(done.stdout)[0], ["model"] + APPENDED)
        self.assertTrue(read(done.stdout)[1][-1])

    def test_more_data_ranks_of_the_same_job_take_no_longer(self):
        columns = "hardware,gpus,arch,params_b,seq_len,global_batch_seqs,micro_batch,dp,tp,pp,sharding,act_ckpt,precision"
        rows = "".join(f"H100-SXM-80GB,{gpus},llama,7,4096,1024,1,{gpus},1,1,zero3,full,bf16\n" for gpus in (8, 64, 512))
        table = read(self.predict(self.write(columns + "\n" + rows), "--output", "-").stdout)
        whole = [float(row[-6]) * float(row[1]) for row in table[1:]]
        self.assertEqual(whole, sorted(whole))

    def test_nonsense_cells_never_fail(self):
        seed = int(os.environ.get("LOCKSTEP_TEST_SEED", "7"))
        generator = random.Random(seed)
        table = read((PUBLISHED / "throughput.csv").read_text())
        nonsense = ["", "-1", "0", "1e308", "nan", "inf", "x", "99999999999999999999", "1.5", "3", "7", "1000000",
                    "a,\"b\"\nc", "\u00e9\u00e9", " 8 ", "0x10", "1048576", "1000"]
        for row in table[1:]:
            for _ in range(generator.randint(1, 8)):
                place = generator.randrange(len(row))
                if table[0][place] != "precision":  # a word, refused as such (below)
                    row[place] = generator.choice(nonsense)
        text = io.StringIO()
        csv.writer(text).writerows(table)
        done = self.predict(self.write(text.getvalue()), "--output", "-")
        after = read(done.stdout)
        self.assertEqual(len(after), len(table), f"seed {seed}")
        for row in after[1:]:
            self.assertTrue(row[-6] or row[-1], f"seed {seed}: {row}")
            self.assertNotIn("nan", row[-6] + row[-5] + row[-4] + row[-3], f"seed {seed}: {row}")
            self.assertNotIn("inf", row[-6] + row[-5] + row[-4] + row[-3], f"seed {seed}: {row}")

    def test_a_preset_by_name_is_priced_as_plan_prices_it(self):
        table = self.write("hardware,gpus,model,seq_len,precision\nH100-SXM-80GB,8,llama2-7b,4096,bf16\n")
        self.assertGreater(float(read(self.predict(table, "--output", "-").stdout)[1][-6]), 0)

    def test_an_unknown_precision_is_refused_with_line_column_and_words(self):
        table = self.write("hardware,gpus,model,seq_len,precision\nH100-SXM-80GB,8,llama2-7b,4096,bf16\n"
                           "H100-SXM-80GB,8,llama2-7b,4096,int4\n")
        self.expect_error(2, ["rows.csv", "line 3, column precision", "`int4`", "fp64, fp32, tf32, fp16, bf16, fp8"],
                          "predict", "--rows", table)

    def test_what_is_no_table_is_refused_with_its_place(self):
        self.expect_error(2, ["rows.csv:2", "fields"], "predict", "--rows", self.write("a,b\n1\n"))
        self.expect_error(2, ["rows.csv:1"], "predict", "--rows", self.write(""))
        self.expect_error(4, ["missing.csv"], "predict", "--rows", "missing.csv")
        self.expect_error(2, ["Hundred"], "predict", "--rows", self.write("model\nx\n"), "--profile", "Hundred")


if __name__ == "__main__":
    unittest.main()
