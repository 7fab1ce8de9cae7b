"""`lockstep simulate` as a user runs it. Needs no engine."""
import gzip
import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "end_to_end"))
from harness import SOURCE, EndToEnd  # noqa: E402


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

    def plan(self, *arguments):
        done = self.run_lockstep("plan", "--model", "llama2-13b", "--cluster", "4x8xH100", "--output", "plan.json", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads((self.folder / "plan.json").read_text())

    def step(self, *arguments):
        return json.loads(self.simulate("plan.json", *arguments, "--json").stdout)

    def test_a_step_is_played_beside_its_closed_form(self):
        for layout in ("shard=32,zero=2", "shard=32,zero=3", "shard=4,zero=1,tp=2,pp=4", "shard=4,zero=1,tp=8"):
            plan = self.plan("--layout", layout, "--micro", "1")
            step = self.step()
            self.assertEqual(step["schema"], "lockstep.simulation/1")
            self.assertAlmostEqual(step["planned_seconds"], plan["best"]["prediction"]["step_seconds"])
            self.assertAlmostEqual(step["closed_form_seconds"] / step["planned_seconds"], 1, places=9)
            ratio = step["without_contention_seconds"] / step["closed_form_full_idle_seconds"]
            self.assertLess(abs(ratio - 1), 0.02, layout)
            for stage in step["stages"]:
                parts = [value for name, value in stage.items() if name not in ("stage", "kind")]
                self.assertAlmostEqual(sum(parts), step["step_seconds"], places=6)
        text = self.simulate("plan.json").stdout
        for word in ("A step of llama2-13b", "closed form", "Where it goes", "Next:"):
            self.assertIn(word, text)

    def test_a_slow_rank_costs_time_and_diagnose_finds_it(self):
        for layout in ("shard=4,zero=1,tp=2,pp=4", "shard=32,zero=3"):
            self.plan("--layout", layout, "--micro", "1")
            calm = self.step()
            slow = self.step("--inject", "slow-rank=17,1.3x", "--record")
            self.assertGreater(slow["step_seconds"], 1.1 * calm["step_seconds"], layout)
            self.assertEqual(slow["undisturbed_seconds"], calm["step_seconds"])
            self.assertEqual(len(slow["recorded_ranks"]), 32)
            diagnosis = json.loads(self.run_lockstep("diagnose", slow["run"], "--json").stdout)
            found = diagnosis["findings"]
            self.assertTrue(found, layout)
            self.assertEqual((found[0]["cause"], found[0]["ranks"]), ("slow_rank", [17]), layout)
        calm = self.step("--record")
        healthy = json.loads(self.run_lockstep("diagnose", calm["run"], "--json").stdout)
        self.assertEqual(healthy["findings"], [])

    def test_a_recorded_simulation_is_a_run(self):
        self.plan("--layout", "shard=4,zero=1,tp=2,pp=4", "--micro", "1")
        run = self.step("--record", "--steps", "5")["run"]
        report = json.loads(self.run_lockstep("report", run, "--json").stdout)
        self.assertEqual(report["run"]["id"], run)
        done = self.run_lockstep("export", run, "--to", "run.perfetto.json", "--format", "perfetto")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_another_cluster(self):
        self.plan("--layout", "shard=32,zero=3", "--micro", "1")
        faster = self.step("--what-if", "nic=800Gb/s")
        self.assertLess(faster["step_seconds"], faster["before_what_if_seconds"])
        self.assertEqual(self.step("--what-if", "storage=1TB/s")["step_seconds"], self.step()["step_seconds"])

    def test_jitter_is_drawn_by_the_seed(self):
        self.plan("--layout", "shard=16,zero=1,tp=2", "--micro", "1")
        arguments = ("--jitter", "3%", "--steps", "3", "--seed", "5")
        self.assertEqual(self.step(*arguments), self.step(*arguments))
        self.assertNotEqual(self.step(*arguments)["steps"], self.step(*arguments[:-1], "6")["steps"])

    def test_wrong_questions_about_a_step_are_one_line(self):
        self.plan("--layout", "shard=32,zero=3", "--micro", "1")
        for arguments, word in [(("--inject", "slow-rank=32,1.3x"), "0 to 31"),
                                (("--inject", "slow-rnak=1,1.3x"), "slow-rank"),
                                (("--what-if", "nick=1Gb/s"), "nic"),
                                (("--jitter", "3"), "percentage"),
                                (("--steps", "2", "--days", "3"), "different questions")]:
            done = self.run_lockstep("simulate", "plan.json", *arguments)
            self.assertEqual(done.returncode, 2, arguments)
            self.assertIn(word, done.stderr)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)

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

    def test_named_sources_say_how_large_and_how_long(self):
        for name, nodes, days in (("llama3", 2048, 54), ("opt175b", 124, 56), ("infinitehbd", 400, 348)):
            study = self.study("--failures", name)
            self.assertEqual(study["days"], days)
            faults = {"llama3": 419 * 1.375, "opt175b": 112, "infinitehbd": 583}[name]
            self.assertIn(f"{faults / nodes / days * 1000:.3g} per 1,000 node-days", study["failures"])
        self.assertEqual(self.study("--failures", "opt175b", "--nodes", "64", "--days", "3")["days"], 3)

    def test_published_runs_side_by_side(self):
        policy = ("--when-short", "wait", "--detect", "5m", "--disk-restart", "10m")
        document = json.loads(self.simulate("--published", *policy, "--samples", "100", "--json").stdout)
        self.assertEqual(document["schema"], "lockstep.published_runs/1")
        llama, opt = document["runs"]
        self.assertEqual((llama["name"], opt["name"]), ("llama3", "opt175b"))
        # What was counted is found again: nodes that fail together are one interruption.
        self.assertTrue(0.8 * 419 < llama["from_disk"]["interruptions"]["mean"] < 1.2 * 419)
        self.assertTrue(0.8 < llama["from_disk"]["goodput"]["median"] < 0.93)
        self.assertAlmostEqual(opt["published"]["goodput"], 33 / 56)
        self.assertGreater(opt["published"]["seconds_per_restart"], 5 * 3600)
        self.assertLess(llama["published"]["seconds_per_restart"], 20 * 60)
        # Four times the rate and too few spares: it waits, and recovering faster does not help.
        self.assertGreater(opt["from_disk"]["shares"]["waiting"], 3 * opt["from_disk"]["shares"]["recovering"])
        self.assertLess(opt["from_memory"]["goodput"]["median"], 0.8)
        self.assertGreater(llama["from_memory"]["goodput"]["median"], 0.95)
        self.assertIn("opt175b", self.simulate("--published", "--samples", "5").stdout)

    def test_ten_thousand_gpus_on_a_real_trace(self):
        trace = SOURCE / "../shared/data/ops/failures/fault_trace.json"
        if not trace.exists():
            self.skipTest(f"the InfiniteHBD trace is not at {trace}")
        study = self.study("--failures", str(trace), "--trace-nodes", "400", "--nodes", "1250", "--days", "90", "--spares", "64",
                           "--detect", "0.82s", "--memory-restart", "0.8s", "--memory-lost", "10s", "--resize", "1.3s")
        planned = study["choices"][0]
        self.assertGreater(planned["goodput"]["low"], 0.99)
        self.assertGreater(planned["interruptions"]["median"], 200)
        from_disk = next(row for row in study["choices"] if row["name"] == "state from disk only")
        self.assertLess(from_disk["goodput"]["median"], 0.97)

    def test_a_trace_goes_on_from_its_end(self):
        rows = [{"node_id": f"n{i}", "event_time": 10 + i, "event_type": "fault_start"} for i in range(20)]
        (self.folder / "faults.json").write_text(json.dumps(rows))
        arguments = ("--failures", "faults.json", "--trace-nodes", "100", "--nodes", "100", "--days", "1")
        down = self.study(*arguments, "--continue")["spares"]["50"]
        self.assertGreaterEqual(down["low"], 20)  # nobody was repaired
        self.assertLess(self.study(*arguments)["spares"]["50"]["low"], 20)

    def operations(self, name, rows):
        lines = ["dp_rank,stage,rank,step,optype,start_ts,duration,seq_id,mc,mb_id,gmc", *rows]
        with gzip.open(self.folder / name, "wt") as file:
            file.write("\n".join(lines) + "\n")
        return name

    def test_a_trace_of_operations_is_replayed(self):
        rows = []
        for step in (3, 9):
            for dp in (0, 1):
                slow = 2 if dp == 1 else 1
                for micro in range(4):
                    rows.append(f"{dp},0,{dp * 2},{step},forward-compute,{0.3 * slow * micro},{0.1 * slow},{micro},0,{micro},0")
                    rows.append(f"{dp},0,{dp * 2},{step},backward-compute,{0.3 * slow * micro + 0.1 * slow},{0.2 * slow},{micro},0,{micro},0")
                rows.append(f"{dp},0,{dp * 2},{step},grads-reduce-scatter,{1.2 * slow},{2.5 - 1.2 * slow},0,0,0,0")
        trace = self.operations("operations.csv.gz", reversed(rows))
        replayed = json.loads(self.simulate("--replay", trace, "--mesh", "dp=2,tp=2", "--json").stdout)
        self.assertEqual(replayed["schema"], "lockstep.replay/1")
        self.assertEqual([step["step"] for step in replayed["steps"]], [3, 9])
        for step in replayed["steps"]:
            self.assertAlmostEqual(step["measured_seconds"], 2.5, places=6)
            self.assertAlmostEqual(step["simulated_seconds"], 2.5, places=6)
            self.assertEqual((step["cause"], step["ranks"]), ("slow_rank", [2]))
        # Computing takes the mean of the two workers, 1.8 s in all, and the collective 0.1 s.
        self.assertAlmostEqual(replayed["slowdown"], 2.5 / 1.9, places=6)
        self.assertIn("slow_rank, rank 2", self.simulate("--replay", trace).stdout)

    def test_a_bad_trace_of_operations_is_one_line(self):
        good = self.operations("good.csv.gz", ["0,0,0,1,forward-compute,0,1,0,0,0,0", "0,0,0,1,backward-compute,1,1,0,0,0,0"])
        (self.folder / "cut.csv.gz").write_bytes((self.folder / good).read_bytes()[:40])
        self.operations("half.csv.gz", ["0,0,0,1,forward-compute,0,1,0,0,0,0"])
        self.operations("word.csv.gz", ["0,0,0,1,forward-compute,zero,1,0,0,0,0"])
        self.operations("empty.csv.gz", [])
        for arguments, word in [(("--replay", "missing.csv"), "is not there"),
                                (("--replay", "missing-run"), "missing-run"),
                                (("--replay", "."), "folder"),
                                (("--replay", "cut.csv.gz"), "cut.csv.gz"),
                                (("--replay", "half.csv.gz"), "no step is whole"),
                                (("--replay", "word.csv.gz"), "word.csv.gz:2"),
                                (("--replay", "empty.csv.gz"), "no operation"),
                                (("--replay", good, "--mesh", "dp=2"), "1 data rank"),
                                (("--replay", good, "--mesh", "dp=1,pq=1"), "pq"),
                                (("--replay", good, "--seed", "1"), "--seed"),
                                (("--replay", good, "--days", "3"), "different questions"),
                                (("--mesh", "dp=1"), "--replay")]:
            done = self.run_lockstep("simulate", *arguments)
            self.assertIn(done.returncode, (2, 4), (arguments, done.stdout, done.stderr))
            self.assertIn(word, done.stderr)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)

    def test_bad_input_is_one_line(self):
        for arguments, word in [((), "what to simulate"),
                                (("--failures", "lama3", "--nodes", "4"), "llama3"),
                                (("--failures", "llama3", "--fit"), "--fit"),
                                (("--failures", "llama3", "--failure-rate", "3"), "--failure-rate"),
                                (("--published", "--nodes", "4"), "--published"),
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
