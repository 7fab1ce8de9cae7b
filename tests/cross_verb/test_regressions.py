"""Wrong answers that users once got because two parts of the program knew the same thing differently, one test each."""
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import jobs  # noqa: E402
from profiles import make_profile  # noqa: E402
from verbs import LOCKSTEP, SOURCE, Verbs, machine  # noqa: E402

GPT = {"arch": "gpt", "layers": 4, "hidden": 32, "heads": 4, "vocab": 256, "max_sequence": 64}
LLAMA = {"arch": "llama", "layers": 4, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn_hidden": 64, "vocab": 256,
         "max_sequence": 64}
MOE = {**LLAMA, "arch": "moe", "experts": 4, "experts_per_token": 2}
BERT = {**GPT, "arch": "bert", "vocab": 260}
KINDS = ("fp16", "bf16", "powersgd", "onebit")
GIB = 2 ** 30


class Regressions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.verbs = Verbs()
        cls.addClassCleanup(cls.verbs.close)
        jobs.write_data(cls.verbs.folder)
        for ranks in (1, 2, 4):
            cls.verbs.write(f"profile-{ranks}.json", make_profile(ranks))

    def job(self, ranks=2, model=GPT, name="job.yaml", **fields):
        job = {"model": model, "cluster": machine(ranks),
               "data": {"kind": "text", "path": str(self.verbs.folder / "text.txt")},
               "batch": {"micro": 2, "accumulation": 2, "sequence_length": 32},
               "communication": {"backend": "local", "timeout": "200s"}, "steps": 1, "threads_per_rank": 1,
               "checkpoint": {"every": 0, "final": False}, "evaluation": {"batches": 1}, "seed": 3}
        job.update(fields)
        return self.verbs.write(name, job)

    def accepted(self, answer):
        self.assertEqual(answer.code, 0, f"{answer.command}: {answer.error}")
        return answer.value

    def assert_refused(self, answer, *pieces):
        self.assertIn(answer.code, (2, 3), f"{answer.command} was not refused: {answer.error or 'accepted'}")
        for piece in pieces:
            self.assertIn(piece, answer.error, answer.command)

    # --- compression -------------------------------------------------------------------------------------------------
    def assert_compression_counts(self, job, kinds=KINDS, refusable=False):
        """Every kind moves fewer bytes than none; where it may be refused or warned of, in words that name it."""
        whole = self.accepted(self.verbs.start(job))["communicated_bytes"]
        for kind in kinds:
            answer = self.verbs.start(job, f"communication.compression={kind}")
            if refusable and (answer.refuses or "compression" in answer.notes):
                self.assertIn("compression", answer.error or answer.notes)
                continue
            self.assertLess(self.accepted(answer)["communicated_bytes"], whole, f"{kind} is ignored by {answer.command}")

    def test_compression_counts_for_plain_replicas(self):
        self.assert_compression_counts(self.job(layout={"dp": 2}))

    def test_compression_counts_with_recompute(self):
        self.assert_compression_counts(self.job(layout={"dp": 2, "recompute": "full"}))

    def test_compression_counts_for_adapters(self):
        self.assert_compression_counts(self.job(model=LLAMA, layout={"dp": 2}, lora={"rank": 8}), kinds=("bf16", "fp16"))

    def test_compression_counts_for_bert(self):
        self.assert_compression_counts(self.job(model=BERT, layout={"dp": 2}))

    def test_compression_counts_for_experts(self):
        self.assert_compression_counts(self.job(model=MOE, layout={"dp": 2}))

    def test_compression_counts_for_instruction_data(self):
        data = {"kind": "instruction", "path": str(SOURCE / "specs" / "examples" / "tiny-instruct.jsonl"),
                "chat_template": "plain"}
        self.assert_compression_counts(self.job(model=LLAMA, layout={"dp": 2}, data=data))

    def test_compression_counts_beside_tensor_ranks(self):
        self.assert_compression_counts(self.job(4, layout={"dp": 2, "tp": 2}))

    def test_compression_counts_beside_pipeline_stages(self):
        self.assert_compression_counts(self.job(4, layout={"dp": 2, "pp": 2, "schedule": "1f1b"}))

    def test_compression_under_a_shard_counts_or_is_refused(self):
        for zero in (1, 2, 3):
            with self.subTest(zero=zero):
                self.assert_compression_counts(self.job(layout={"shard": 2, "zero": zero}), refusable=True)

    def test_compression_without_replicas_is_not_ignored_in_silence(self):
        for layout in ({"tp": 2}, {"pp": 2, "schedule": "1f1b"}):
            with self.subTest(layout=layout):
                self.assert_compression_counts(self.job(layout=layout), kinds=("powersgd",), refusable=True)

    def test_the_tuner_prices_compression_only_where_the_engine_has_it(self):
        """A knob that the engine refuses is not priced as a gain."""
        self.verbs.folder.joinpath("compression.yaml").write_text(
            "knobs: {compression: {choices: [none, powersgd], default: powersgd}}\n")
        layout = {"shard": 2, "zero": 3}
        engine = self.verbs.start(self.job(layout=layout), "communication.compression=powersgd")
        tuned = self.verbs.tune(self.job(layout=layout, cluster=machine(2, kind="H100"), precision="bf16"), "--space",
                                "compression.yaml", "communication.compression=powersgd")
        self.assertEqual(tuned.accepts, engine.accepts, f"{engine.command}: {engine.error}\n{tuned.command}: {tuned.error}")

    # --- memory ------------------------------------------------------------------------------------------------------
    def test_a_pipeline_that_turns_back_holds_both_ends_on_its_first_rank(self):
        wide = {**LLAMA, "vocab": 50000, "tied_embeddings": False}
        memory = {}
        for schedule, stages in (("1f1b", 1), ("zero_bubble", 2)):
            layout = {"pp": 2, "schedule": schedule, "virtual_stages": stages}
            value = self.accepted(self.verbs.dry_run(self.job(model=wide, layout=layout)))
            memory[schedule] = value["best"]["memory_gib"]["parameters"] * GIB
        ends = 50000 * 32 * 4  # bytes of the embedding, and of the head
        self.assertAlmostEqual(memory["1f1b"], ends, delta=0.1 * ends)
        self.assertAlmostEqual(memory["zero_bubble"], 2 * ends, delta=0.1 * ends)

    def test_weights_of_fp8_are_held_in_two_bytes_by_everyone(self):
        """What stays gathered without resharding is the bf16 weight; `tune` once counted one byte of fp8."""
        model = {**LLAMA, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn_hidden": 11008, "layers": 16}
        self.verbs.folder.joinpath("reshard.yaml").write_text(
            "knobs: {reshard_after_forward: {choices: [true, false], default: false}}\n")
        needed = {}
        for precision in ("bf16", "fp8"):
            job = self.job(model=model, layout={"shard": 4, "zero": 3, "recompute": "full"}, precision=precision,
                           cluster=machine(4, memory=2 ** 30, kind="H100"),
                           communication={"reshard_after_forward": False},
                           batch={"micro": 1, "sequence_length": 64})
            answer = self.verbs.tune(job, "--space", "reshard.yaml")
            if precision == "fp8" and answer.code == 2:
                self.assertIn("fp8", answer.error)  # the engine has no fp8 on several GPUs
                return
            self.assertEqual(answer.code, 3, f"{answer.command}: {answer.error}")
            needed[precision] = float(re.search(r"needs ([\d.]+) GiB", answer.error)[1])
        self.assertAlmostEqual(needed["fp8"], needed["bf16"], delta=0.1 * needed["bf16"])

    # --- verdicts ----------------------------------------------------------------------------------------------------
    def test_a_sequence_that_does_not_divide_over_context_ranks_is_refused_by_all(self):
        long = {**LLAMA, "max_sequence": 1024, "layers": 2}
        layout = {"cp": 4, "context_exchange": "ring"}
        batch = {"micro": 1, "sequence_length": 1020}
        name = self.job(4, model=long, layout=layout, batch=batch)
        there = self.job(4, model=long, batch=batch, cluster=machine(4, kind="H100"), precision="bf16", name="there.yaml")
        self.assert_refused(self.verbs.dry_run(name), "1020")
        self.assert_refused(self.verbs.start(name), "1020")
        self.assert_refused(self.verbs.plan(name, "--profile", "./profile-4.json"), "1020")
        self.assert_refused(self.verbs.tune(name, "--profile", "./profile-4.json", "--space", "space.yaml"), "1020")
        self.assert_refused(self.verbs.plan(there, "--fix", "cp=4,context_exchange=ring"), "1020")
        self.assert_refused(self.verbs.plan(there, "--layout", "cp=4"), "1020")

    def test_interleaving_with_an_odd_accumulation_is_tuned_as_it_is_trained(self):
        layout = {"pp": 2, "schedule": "interleaved", "virtual_stages": 2}
        name = self.job(layout=layout, batch={"micro": 1, "accumulation": 3, "sequence_length": 32})
        self.accepted(self.verbs.start(name))
        self.accepted(self.verbs.tune(name, "--profile", "./profile-2.json", "--space", "space.yaml"))
        there = self.job(layout=layout, batch={"micro": 1, "accumulation": 3, "sequence_length": 32},
                         cluster=machine(2, kind="H100"), precision="bf16")
        self.accepted(self.verbs.tune(there, "--space", "space.yaml"))

    def test_a_plan_file_is_judged_as_a_layout_in_the_job_is(self):
        """The engine was handed whatever layout a plan file held."""
        name = self.job(2, batch={"micro": 1, "accumulation": 2, "sequence_length": 30})
        plan = self.accepted(self.verbs.dry_run(name))
        plan["best"]["layout"].update(dp=1, cp=2)
        plan["best"]["batch"]["global_sequences"] = 2
        self.verbs.write("wrong.plan.json", plan)
        self.assert_refused(self.verbs.dry_run(name, "--plan", "wrong.plan.json"), "30")
        self.assert_refused(self.verbs.start(name, "--plan", "wrong.plan.json"), "30")

    def test_what_a_plan_decides_is_not_overridden_in_silence(self):
        """`--plan` won over the command line without a word."""
        name = self.job(2, layout={"dp": 2})
        self.verbs.write("this.plan.json", self.accepted(self.verbs.dry_run(name)))
        for word in ("batch.micro=4", "batch.accumulation=1", "batch.sequence_length=16", "precision=bf16", "layout.tp=2"):
            self.assert_refused(self.verbs.dry_run(name, "--plan", "this.plan.json", word), word, "this.plan.json")
        for word in ("batch.micro=2", "layout.dp=2", "steps=3"):
            self.accepted(self.verbs.dry_run(name, "--plan", "this.plan.json", word))

    def test_a_plan_of_another_cluster_or_model_is_refused(self):
        """An H100's plan was trained on a CPU, with the H100's figures beside the measured ones."""
        name = self.job(2, layout={"dp": 2})
        there = self.job(2, layout={"dp": 2}, cluster=machine(2, kind="H100"), name="there.yaml")
        self.verbs.write("there.plan.json", self.accepted(self.verbs.plan(there, "--layout", "dp=2")))
        self.assert_refused(self.verbs.dry_run(name, "--plan", "there.plan.json"), "1x2xH100", "1x2xcpu")
        self.verbs.write("this.plan.json", self.accepted(self.verbs.dry_run(name)))
        self.assert_refused(self.verbs.dry_run(name, "--plan", "this.plan.json", "model.layers=2"), "other sizes")

    def test_tune_refuses_a_job_in_the_words_of_train(self):
        """The study's space was blamed, or every trial was invalid."""
        for fields, piece in (({"layout": {"dp": 3}}, "3 ranks"), ({"layout": {"zero": 3}}, "zero"),
                              ({"layout": {"cp": 2}, "batch": {"micro": 1, "sequence_length": 63}}, "63")):
            name = self.job(2, **fields)
            trained = self.verbs.dry_run(name)
            self.assert_refused(trained, piece)
            self.assert_refused(self.verbs.tune(name, "--profile", "./profile-2.json"), piece)

    # --- profiles ----------------------------------------------------------------------------------------------------
    def test_the_variable_takes_a_name_in_every_verb(self):
        name = self.job(layout={"dp": 2})
        environment = {"LOCKSTEP_PROFILE": "H100"}
        planned = self.verbs.run("plan", "--model", "gpt2-124m", "--cluster", "1x8xH100", "--no-what-if", "--json",
                                 environment=environment)
        self.assertIn("H100", self.accepted(planned)["profile"])
        trained = self.verbs.dry_run(name, environment=environment)
        self.assertNotIn("cannot open", trained.error)

    def test_a_measured_gpu_is_what_plan_prices_with(self):
        profile = json.loads((SOURCE / "specs" / "profiles" / "H200-lockstep.json").read_text())
        profile["provenance"]["hardware"] = "the H200 of this machine"
        home = self.verbs.folder / "measured"
        (home / "profiles").mkdir(parents=True)
        (home / "profiles" / f"{socket.gethostname()}-cuda.json").write_text(json.dumps(profile))
        answer = self.verbs.run("plan", "--model", "llama3.2-1b", "--cluster", "1x1xH200", "--no-what-if", "--json",
                                environment={"LOCKSTEP_HOME": str(home)})
        self.assertIn("the H200 of this machine", self.accepted(answer)["profile"])

    # --- money -------------------------------------------------------------------------------------------------------
    def test_failures_and_whole_nodes_are_paid_for_in_plan_and_train(self):
        name = self.job(layout={"pp": 2, "schedule": "1f1b"}, steps=100000)
        profile = ("--profile", "./profile-2.json")
        planned = self.accepted(self.verbs.plan(name, *profile))["best"]["cost"]
        trained = self.accepted(self.verbs.dry_run(name, *profile))["best"]["cost"]
        self.assertGreater(planned["usd"], 0)
        for term in ("usd", "gpu_hours", "days"):
            self.assertAlmostEqual(trained[term] / planned[term], 1, places=9, msg=term)

    # --- records -----------------------------------------------------------------------------------------------------
    def test_a_run_of_json_lines_is_reported(self):
        run = "20260101-000000-abcdef-lines"
        home = self.verbs.folder / "lines"
        folder = home / "runs" / run
        folder.mkdir(parents=True)
        begin = {"type": "run", "run": run, "name": "lines", "started_at": 1.0, "world": 2, "backend": "nccl",
                 "host": "node", "pid": 1, "pid_started": 1, "job": "", "versions": {}}
        end = {"type": "end", "run": run, "time": 9.0, "status": "done", "exit_reason": "", "summary": {"steps": 2}}
        for rank in (0, 1):
            values = [{"type": "metrics", "run": run, "rank": rank, "step": step, "time": 1.0 + step,
                       "values": {"loss": 5.0 - step, "step_seconds": 0.5}} for step in (1, 2)]
            lines = [begin, *values, end] if rank == 0 else values
            (folder / f"rank-{rank:05d}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        environment = {"LOCKSTEP_HOME": str(home)}
        listed = self.accepted(self.verbs.run("report", "--list", "--json", environment=environment))
        self.assertEqual([row["run"] for row in listed["runs"]], [run])
        value = self.accepted(self.verbs.run("report", "last", "--json", environment=environment))
        self.assertEqual(value["loss"], [[1, 4.0], [2, 3.0]])
        self.assertEqual([row["rank"] for row in value["ranks"]], [0, 1])

    def test_ranks_of_other_nodes_are_in_the_report(self):
        """Two ranks that each believe to be alone on their node, as a launcher of two nodes would start them."""
        name = self.job(layout={"dp": 2}, steps=2, communication={"backend": "gloo", "timeout": "60s"})
        home = self.verbs.folder / "nodes"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        ranks = []
        for rank in (0, 1):
            environment = {k: v for k, v in self.verbs.environment.items() if k != "LOCKSTEP_ENGINE"}
            environment.update(LOCKSTEP_HOME=str(home), RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0",
                               LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                               LOCKSTEP_TOKEN="two-nodes", LOCKSTEP_STORE_TOKEN="two-nodes")
            ranks.append(subprocess.Popen([LOCKSTEP, "train", name, "--backend", "gloo", "--json"],
                                          cwd=self.verbs.folder, env=environment, text=True, stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE))
        for process in ranks:
            out, err = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0, out + err)
        value = self.accepted(self.verbs.run("report", "last", "--json", environment={"LOCKSTEP_HOME": str(home)}))
        self.assertEqual([row["rank"] for row in value["ranks"]], [0, 1])

    def test_a_report_has_no_section_that_nothing_fills(self):
        name = self.job(layout={"dp": 2}, steps=2)
        home = self.verbs.folder / "sections"
        environment = {"LOCKSTEP_HOME": str(home)}
        self.verbs.start_engine()
        self.accepted(self.verbs.run("train", name, "--backend", "local", "--json",
                                     environment={**environment, "CROSS_VERB_ENGINE":
                                                  self.verbs.environment["CROSS_VERB_ENGINE"]}))
        value = self.accepted(self.verbs.run("report", "last", "--json", environment=environment))
        self.assertNotEqual(value.get("spans", "absent"), [], "spans that no part of the program records")

    # --- claims ------------------------------------------------------------------------------------------------------
    def test_schedule_tables_are_verified_as_the_documentation_says(self):
        """The engine's start calls the check, or no page claims it."""
        claims = [page.name for page in (SOURCE / "docs").rglob("*.md")
                  if re.search(r"table is (verified|checked) before", page.read_text())]
        callers = [path for path in (SOURCE / "lockstep").rglob("*.cpp")
                   if "find_schedule_problem(" in path.read_text() and path.name != "pipeline_check.cpp"]
        self.assertTrue(callers or not claims, f"{claims} claim a check that nothing in lockstep/ calls")


if __name__ == "__main__":
    os.environ.pop("LOCKSTEP_PROFILE", None)
    unittest.main(verbosity=2)
