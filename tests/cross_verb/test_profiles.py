"""One profile, one meaning: a name, a file or what `calibrate` kept of this machine prices a job the same way in `plan`,
`train`, `tune`, `predict`, `suggest` and Python, whether a flag, LOCKSTEP_PROFILE or nothing names it."""
import json
import os
import pathlib
import socket
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import jobs  # noqa: E402
from profiles import make_profile  # noqa: E402
from verbs import BUILD, SOURCE, Verbs, machine  # noqa: E402

NAME = "H100-llm-foundry"  # a fifth slower than H100's generic profile
NOISE = 0.08  # `tune --simulate` draws launches 1.5% and steps 1% apart
LLAMA = {"arch": "llama", "layers": 16, "hidden": 2048, "heads": 16, "ffn_hidden": 5632, "vocab": 32000,
         "max_sequence": 2048}
ROW = {"id": "row", "hardware": "H100", "gpus": 8, "gpus_per_node": 8, "model": "llama2-7b", "arch": "llama",
       "seq_len": 4096, "global_batch_seqs": 64, "micro_batch": 1, "grad_accum": 8, "dp": 8, "tp": 1, "pp": 1,
       "sharding": "zero3", "act_ckpt": "full", "precision": "bf16"}
PYTHON = """
import inspect, json, lockstep, sys
profile, use_flag = sys.argv[1], sys.argv[2] == "flag"
given = {"profile": profile} if use_flag else {}
if use_flag and "profile" not in inspect.signature(lockstep.plan).parameters:
    planned = "lockstep.plan() takes no profile"
else:
    planned = lockstep.plan("gpt2-124m", "1x8xH100", **given)["profile"]
suggested = lockstep.suggest(model="gpt2-124m", cluster="1x8xH100", dataset_size="1B", studies=False, **given)
print(json.dumps({"python plan": planned, "python suggest": suggested.to_dict()["profile"]}))
"""


class Profiles(unittest.TestCase):
    def setUp(self):
        self.verbs = Verbs()
        self.addCleanup(self.verbs.close)
        jobs.write_data(self.verbs.folder)
        self.verbs.folder.joinpath("rows.csv").write_text(
            ",".join(ROW) + "\n" + ",".join(map(str, ROW.values())) + "\n")

    def text_job(self, ranks, **fields):
        job = {"model": {"arch": "gpt", "layers": 2, "hidden": 32, "heads": 2, "vocab": 256, "max_sequence": 32},
               "cluster": machine(ranks), "data": {"kind": "text", "path": str(self.verbs.folder / "text.txt")},
               "batch": {"micro": 4, "sequence_length": 32}, "communication": {"backend": "local"}, "steps": 1,
               "threads_per_rank": 1, "checkpoint": {"every": 0, "final": False}, "evaluation": {"batches": 1}}
        job.update(fields)
        return self.verbs.write("job.yaml", job)

    def accepted(self, answer):
        self.assertEqual(answer.code, 0, f"{answer.command}: {answer.error}")
        return answer.value

    # --- names and files on devices ----------------------------------------------------------------------------------
    def identities(self, profile, how):
        """{verb: identity of the profile it priced with} on 8 H100."""
        flag = ("--profile", profile) if how == "flag" else ()
        environment = {} if how == "flag" else {"LOCKSTEP_PROFILE": profile}
        run = self.verbs.run
        asked = ("--model", "gpt2-124m", "--cluster", "1x8xH100")
        found = {
            "plan": run("plan", *asked, *flag, "--no-what-if", "--json", environment=environment),
            "suggest": run("suggest", *asked, "--dataset-tokens", "1e9", "--no-studies", *flag, "--json",
                           environment=environment),
            "predict": run("predict", "--rows", "rows.csv", "--output", "-", *flag, "--json", environment=environment),
        }
        names = {}
        for verb, answer in found.items():
            value = self.accepted(answer)
            names[verb] = value["predictions"][0]["profile"] if verb == "predict" else value["profile"]
        return {**names, **self.identities_in_python(profile, how)}

    def identities_in_python(self, profile, how):
        if not list((BUILD / "python" / "lockstep").glob("_core*.so")):
            return {}  # a build without the Python module
        environment = {**self.verbs.environment, "PYTHONPATH": str(BUILD / "python")}
        if how == "environment":
            environment["LOCKSTEP_PROFILE"] = profile
        done = subprocess.run([os.environ.get("LOCKSTEP_PYTHON") or sys.executable, "-c", PYTHON, profile, how],
                              cwd=self.verbs.folder, env=environment, text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def assert_one_identity(self, profile, how):
        found = self.identities(profile, how)
        other = {verb: name for verb, name in found.items() if name != found["plan"]}
        self.assertEqual(other, {}, f"{how} {profile}: plan priced with {found['plan']!r}")
        return found["plan"]

    def test_a_name_by_flag_means_the_same_everywhere(self):
        self.assertIn("llm-foundry", self.assert_one_identity(NAME, "flag"))

    def test_a_name_by_variable_means_the_same_everywhere(self):
        self.assertIn("llm-foundry", self.assert_one_identity(NAME, "environment"))

    def test_a_file_by_flag_means_the_same_everywhere(self):
        self.assertIn("a stack of ours", self.assert_one_identity(self.own_file(), "flag"))

    def test_a_file_by_variable_means_the_same_everywhere(self):
        self.assertIn("a stack of ours", self.assert_one_identity(self.own_file(), "environment"))

    def own_file(self):
        profile = json.loads((SOURCE / "specs" / "profiles" / f"{NAME}.json").read_text())
        profile["provenance"]["software"] = "a stack of ours"
        self.verbs.write("own.json", profile)
        return str(self.verbs.folder / "own.json")

    def test_a_name_that_does_not_exist_is_refused_everywhere(self):
        job = self.text_job(2)
        asked = ("--model", "gpt2-124m", "--cluster", "1x8xH100")
        for how in ("flag", "environment"):
            flag = ("--profile", "H100-nowhere") if how == "flag" else ()
            environment = {} if how == "flag" else {"LOCKSTEP_PROFILE": "H100-nowhere"}
            answers = [self.verbs.run("plan", *asked, *flag, "--json", environment=environment),
                       self.verbs.run("suggest", *asked, "--dataset-tokens", "1e9", *flag, "--json",
                                      environment=environment),
                       self.verbs.run("predict", "--rows", "rows.csv", "--output", "-", *flag, "--json",
                                      environment=environment),
                       self.verbs.dry_run(job, *flag, environment=environment),
                       self.verbs.run("tune", job, "--simulate", "--trials", 1, *flag, "--json",
                                      environment=environment)]
            for answer in answers:
                with self.subTest(how=how, command=answer.command):
                    self.assertIn(answer.code, (2, 4))
                    self.assertIn("H100-nowhere", answer.error)
                    self.assertEqual(answer.error, answers[0].error)

    # --- the same job in plan, train and tune ------------------------------------------------------------------------
    def speeds(self, job, *flag, environment=None):
        """Predicted tokens/s of the job as written."""
        planned = self.accepted(self.verbs.plan(job, *flag, environment=environment))
        trained = self.accepted(self.verbs.dry_run(job, *flag, environment=environment))
        tuned = self.accepted(self.verbs.tune(job, *flag, "--space", "space.yaml", environment=environment))
        self.assertEqual(trained["profile"], planned["profile"])
        self.assertEqual(trained["best"]["prediction"]["tokens_per_second"],
                         planned["best"]["prediction"]["tokens_per_second"])
        expected = planned["best"]["prediction"]["tokens_per_second"]
        self.assertLess(abs(tuned["baseline"]["estimate"] / expected - 1), NOISE, "tune prices with another profile")
        return planned["profile"], expected

    def test_a_file_prices_a_job_the_same_in_plan_train_and_tune(self):
        job = self.text_job(2, layout={"dp": 2})
        for name, flops in (("slow.json", 1e9), ("fast.json", 1e11)):
            self.verbs.write(name, make_profile(2, flops=flops, name=name))
        for spelling in ("slow.json", "./slow.json", str(self.verbs.folder / "slow.json")):
            with self.subTest(spelling=spelling):
                by_flag = self.speeds(job, "--profile", spelling)
                by_variable = self.speeds(job, environment={"LOCKSTEP_PROFILE": spelling})
                self.assertEqual(by_flag, by_variable)
                self.assertIn("slow.json", by_flag[0])
        # A flag wins over the variable.
        both = self.speeds(job, "--profile", "fast.json", environment={"LOCKSTEP_PROFILE": "slow.json"})
        self.assertIn("fast.json", both[0])

    def test_a_name_is_understood_for_cpu_ranks_too(self):
        """It may be refused, for the devices are others; but in one sentence, whoever is asked."""
        job = self.text_job(2, layout={"dp": 2})
        for how in ("flag", "environment"):
            flag = ("--profile", "H100") if how == "flag" else ()
            environment = {} if how == "flag" else {"LOCKSTEP_PROFILE": "H100"}
            answers = [self.verbs.plan(job, *flag, environment=environment),
                       self.verbs.dry_run(job, *flag, environment=environment),
                       self.verbs.tune(job, *flag, "--space", "space.yaml", environment=environment)]
            for answer in answers:
                self.assertNotIn("cannot open", answer.error, answer.command)
                self.assertEqual(answer.code, answers[0].code, f"{answer.command}: {answer.error}")
                self.assertEqual(answer.error, answers[0].error, answer.command)

    def test_what_calibrate_kept_of_this_machine_is_everybodys_default(self):
        job = self.text_job(1)
        self.verbs.start_engine()
        done = self.verbs.run("calibrate", job, "--quick", "--json")
        self.assertEqual(done.code, 0, done.error)
        (kept,) = (self.verbs.home / "profiles").glob("*.json")
        profile = json.loads(kept.read_text())
        profile["provenance"]["hardware"] = "this very machine"
        kept.write_text(json.dumps(profile))
        identity, speed = self.speeds(job)
        self.assertIn("this very machine", identity)
        self.assertEqual(self.speeds(job, "--profile", kept), (identity, speed))
        started = self.accepted(self.verbs.start(job))
        self.assertEqual(started["predicted_tokens_per_second"], speed)

    def measured_gpu(self):
        """What `calibrate --device cuda` leaves on a machine with an H200, three times slower than the embedded one."""
        profile = json.loads((SOURCE / "specs" / "profiles" / "H200-lockstep.json").read_text())
        profile["provenance"]["hardware"] = "the H200 of this machine"
        for constant in ("gemm_efficiency", "attention_efficiency"):
            profile["fitted"]["constants"][constant] /= 3
        for key in ("dense", "fused"):  # the general path alone, so that the constants decide
            profile.pop(key, None)
        folder = self.verbs.home / "profiles"
        folder.mkdir(parents=True)
        (folder / f"{socket.gethostname()}-cuda.json").write_text(json.dumps(profile))

    def test_a_measured_gpu_prices_plan_tune_and_suggest(self):
        one = ("--model", "llama3.2-1b", "--cluster", "1x1xH200")
        before = self.accepted(self.verbs.run("plan", *one, "--no-what-if", "--json"))
        self.measured_gpu()
        after = self.accepted(self.verbs.run("plan", *one, "--no-what-if", "--json"))
        self.assertIn("the H200 of this machine", after["profile"], "plan prices with the embedded profile")
        self.assertGreater(after["best"]["prediction"]["step_seconds"],
                           1.5 * before["best"]["prediction"]["step_seconds"])
        suggested = self.accepted(self.verbs.run("suggest", *one, "--dataset-tokens", "1e9", "--no-studies", "--json"))
        self.assertIn("the H200 of this machine", suggested["profile"])
        job = self.text_job(1, model=LLAMA, cluster=machine(1, kind="H200"), layout={"dp": 1}, precision="bf16",
                            batch={"micro": 1, "accumulation": 8, "sequence_length": 2048})
        planned = self.accepted(self.verbs.plan(job, "--micro", 1))
        tuned = self.accepted(self.verbs.tune(job, "--space", "space.yaml"))
        expected = planned["best"]["prediction"]["tokens_per_second"]
        self.assertLess(abs(tuned["baseline"]["estimate"] / expected - 1), NOISE, "tune prices with another profile")


if __name__ == "__main__":
    unittest.main(verbosity=2)
