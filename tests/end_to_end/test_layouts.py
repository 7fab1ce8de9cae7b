"""Layouts through the command line: each gives the losses of plain replicas on the same global batch, wrong ones are
refused before a rank starts, and a checkpoint of one layout goes on under another."""
import pathlib
import shutil

from harness import *

GPT = {"arch": "gpt", "layers": 2, "hidden": 32, "heads": 4, "vocab": 256, "max_sequence": 32}
EXPERTS = {"arch": "moe", "layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn_hidden": 48, "vocab": 256,
           "max_sequence": 32, "experts": 4, "experts_per_token": 2}
MAMBA = {"arch": "mamba", "layers": 2, "hidden": 32, "vocab": 256, "max_sequence": 32}
STEPS = 4


class Layouts(EndToEnd):
    def job(self, model=GPT, **fields):
        """Eight sequences a step, one rank; ranks are threads unless a test says otherwise."""
        defaults = {"model": model, "steps": STEPS, "batch": {"micro": 4, "accumulation": 2, "sequence_length": 32},
                    "communication": {"backend": "local"}, "checkpoint": {"every": 0}}
        return self.text_job(ranks=1, **{**defaults, **fields})

    def final_loss(self, job, *arguments):
        result = self.train(job, *arguments)
        self.assertEqual((result["status"], result["steps"]), ("done", STEPS))
        return result["final_loss"]

    def assert_same_loss(self, loss, expected, relative):
        self.assertAlmostEqual(loss, expected, delta=relative * abs(expected))

    # --- equal to replicas -------------------------------------------------------------------------------------------
    def test_every_layout_gives_the_losses_of_one_rank(self):
        job = self.job()
        expected = self.final_loss(job)
        layouts = {
            "tensor": ("cluster=1x2xcpu", "layout.tp=2"),
            "pipeline": ("cluster=1x2xcpu", "layout.pp=2", "layout.schedule=1f1b"),
            "sharded": ("cluster=1x2xcpu", "layout.shard=2", "layout.zero=3", "batch.micro=2"),
            "context": ("cluster=1x2xcpu", "layout.cp=2"),
            "replicas of tensor": ("cluster=1x4xcpu", "layout.dp=2", "layout.tp=2", "batch.micro=2"),
        }
        for name, overrides in layouts.items():
            with self.subTest(layout=name):
                self.assert_same_loss(self.final_loss(job, *overrides), expected, 1e-5)

    def test_processes_give_the_losses_of_threads(self):
        job = self.job()
        overrides = ("cluster=1x2xcpu", "layout.tp=2")
        self.assert_same_loss(self.final_loss(job, *overrides, "--backend", "gloo"), self.final_loss(job, *overrides),
                              1e-6)

    def test_experts_on_two_ranks_give_the_losses_of_one(self):
        job = self.job(model=EXPERTS)
        expected = self.final_loss(job)
        spread = self.final_loss(job, "cluster=1x2xcpu", "layout.dp=2", "layout.ep=2", "batch.micro=2")
        self.assert_same_loss(spread, expected, 1e-5)

    def test_mamba_split_over_tensor_ranks_gives_the_losses_of_one(self):
        job = self.job(model=MAMBA)
        expected = self.final_loss(job)
        self.assert_same_loss(self.final_loss(job, "cluster=1x2xcpu", "layout.tp=2"), expected, 1e-5)

    # --- refused -----------------------------------------------------------------------------------------------------
    def assert_refused(self, pieces, *overrides):
        self.expect_error(2, pieces, "train", self.job(), *overrides, "--backend", "gloo")
        runs = pathlib.Path(self.environment["LOCKSTEP_HOME"]) / "runs"
        self.assertFalse(runs.exists() and any(runs.iterdir()), "a rank was started")

    def test_layouts_that_cannot_work_are_refused_with_the_nearest_that_can(self):
        cases = {
            "heads": (["tp", "nearest"], "cluster=1x3xcpu", "layout.tp=3"),
            "stages": (["pp", "nearest"], "cluster=1x4xcpu", "layout.pp=4"),
            "ranks": (["4", "nearest"], "cluster=1x4xcpu", "layout.tp=2"),
        }
        for name, (pieces, *overrides) in cases.items():
            with self.subTest(wrong=name):
                self.assert_refused(pieces, *overrides)

    def test_a_sequence_that_does_not_divide_is_refused(self):
        self.assert_refused(["sequence", "multiple of 4"], "cluster=1x2xcpu", "layout.cp=2", "batch.sequence_length=30")

    def test_weights_that_are_not_there_are_refused_before_ranks_start(self):
        missing = self.folder / "nowhere"
        self.expect_error(4, ["weights", str(missing)], "train", self.job(), f"weights={missing}")

    def test_a_folder_that_cannot_be_exported_to_is_refused_before_the_training(self):
        self.assert_refused(["--export", "not an empty folder"], "--export", self.folder)

    # --- stopped and resumed -----------------------------------------------------------------------------------------
    def test_a_resumed_sharded_run_is_bit_identical(self):
        overrides = ("cluster=1x2xcpu", "layout.shard=2", "layout.zero=3", "batch.micro=2", "steps=6")
        whole = self.losses(self.train(self.job(), *overrides)["run"])
        folder = self.folder / "sharded"
        job = self.job(checkpoint={"directory": str(folder), "every_steps": 3})
        self.keep_only_step(folder, 3, self.train(job, *overrides))
        after = self.losses(self.train(job, *overrides, "--resume")["run"])
        self.assertEqual(after, {step: loss for step, loss in whole.items() if step > 3})

    def test_a_checkpoint_of_tensor_ranks_goes_on_as_a_pipeline(self):
        folder = self.folder / "tensor"
        job = self.job(checkpoint={"directory": str(folder), "every_steps": 3})
        whole = self.train(job, "cluster=1x2xcpu", "layout.tp=2", "steps=6")
        self.keep_only_step(folder, 3, whole)
        staged = self.train(job, "cluster=1x2xcpu", "layout.pp=2", "layout.schedule=1f1b", "steps=6", "--resume")
        expected, after = self.losses(whole["run"]), self.losses(staged["run"])
        self.assertEqual(sorted(after), [4, 5, 6])
        for step, loss in after.items():
            self.assert_same_loss(loss, expected[step], 1e-6)

    def keep_only_step(self, folder, step, result):
        """What a run that died right after saving `step` leaves behind."""
        self.assertEqual(result["status"], "done")
        for saved in folder.glob("step-*"):
            if int(saved.name.split("-")[1]) != step:
                shutil.rmtree(saved)
        self.assertEqual(len(list(folder.glob("step-*"))), 1)

    # --- fine-tuning -------------------------------------------------------------------------------------------------
    def test_adapters_are_merged_into_the_exported_folder(self):
        folder = self.folder / "exported"
        instructions = SOURCE / "specs/jobs/tiny-instruct.yaml"
        self.train(instructions, "lora.rank=4", "steps=2", "evaluation.every=0", "evaluation.batches=1",
                   "--backend", "local", "--export", folder)
        self.assertEqual(json.loads((folder / "config.json").read_text())["model_type"], "llama")
        names = safetensors_names(folder / "model.safetensors")
        self.assertIn("model.layers.0.self_attn.q_proj.weight", names)
        self.assertEqual([name for name in names if "lora" in name], [])
        # The folder is the start of another run: its sizes and names are the model's.
        done = self.run_lockstep("train", instructions, f"weights={folder}", "steps=1", "evaluation.batches=1",
                                 "--backend", "local")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_run_says_what_data_it_read(self):
        done = self.run_lockstep("train", SOURCE / "specs/jobs/tiny-instruct.yaml", "steps=1", "evaluation.batches=1",
                                 "--backend", "local")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("data: ", done.stdout)


def safetensors_names(path):
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return [name for name in json.loads(file.read(size)) if name != "__metadata__"]


if __name__ == "__main__":
    unittest.main()
