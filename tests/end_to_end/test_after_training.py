"""`lockstep evaluate`, `generate` and `export`: what is done with weights after training."""
import json
import math
import shutil
import unittest

from harness import EndToEnd


class AfterTraining(EndToEnd):
    def setUp(self):
        super().setUp()
        self.saved = self.folder / "checkpoints"

    def ask(self, *arguments):
        done = self.run_lockstep(*arguments, "--json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return json.loads(done.stdout.strip().splitlines()[-1])

    def checkpointed(self, **fields):
        return {"checkpoint": {"directory": str(self.saved)}, "communication": {"backend": "local"}, **fields}

    def test_a_language_models_figures_are_those_of_its_training_whatever_the_layout_was(self):
        for name, layout in (("sharded", {"shard": 2, "zero": 3}), ("cut", {"tp": 2})):
            self.saved = self.folder / name
            job = self.text_job(steps=6, precision="fp64", **self.checkpointed(layout=layout))
            told = self.train(job)["evaluations"][-1]
            found = self.ask("evaluate", self.saved)
            self.assertEqual((found["schema"], found["step"], found["targets"]), ("lockstep.evaluation/1", 6, told["targets"]))
            self.assertAlmostEqual(found["loss"], told["loss"], delta=1e-12)
            self.assertAlmostEqual(found["accuracy"], told["accuracy"], delta=1e-12)
            self.assertAlmostEqual(found["perplexity"], math.exp(found["loss"]), delta=1e-9)
        few = self.ask("evaluate", self.saved, "--samples", 3, "--micro", 2)
        self.assertEqual(few["samples"], 3)

    def test_a_cnn_is_exported_and_its_folder_has_the_same_figures(self):
        self.write_idx_mnist(train=128, test=48)
        job = self.mnist_job(ranks=2, **self.checkpointed())
        told = self.train(job, "--export", self.folder / "exported")["evaluations"][-1]
        found = self.ask("evaluate", self.saved)
        self.assertAlmostEqual(found["loss"], told["loss"], delta=1e-5)
        self.assertEqual(sum(row["targets"] for row in found["classes"]), 48)
        by_hand = [row["f1"] for row in found["classes"]]
        self.assertAlmostEqual(found["f1"], sum(by_hand) / len(by_hand), delta=1e-12)
        self.assertEqual(self.ask("export", self.saved, "--to", self.folder / "again")["step"], found["step"])
        for folder in ("exported", "again"):
            same = self.ask("evaluate", self.folder / folder, "--job", job)
            self.assertAlmostEqual(same["loss"], found["loss"], delta=1e-9, msg=folder)
        self.expect_error(2, ["--job"], "evaluate", self.folder / "again")

    def test_a_classifier_of_sentences_is_exported_and_its_folder_has_the_same_figures(self):
        lines = [f"{'good' if i % 2 else 'bad'},{'fine warm' if i % 2 else 'poor cold'} play number {i}" for i in range(64)]
        (self.folder / "train.csv").write_text("\n".join(["label,text", *lines]) + "\n")
        (self.folder / "test.csv").write_text("\n".join(["label,text", *lines[:15]]) + "\n")
        job = self.folder / "sentences.json"
        job.write_text(json.dumps({
            "model": {"arch": "bert", "layers": 1, "hidden": 32, "heads": 2, "vocab": 256, "max_sequence": 48, "classes": 2},
            "cluster": "1x2xcpu", "batch": {"micro": 4}, "steps": 6, "evaluation": {"metrics": ["f1"]},
            "data": {"kind": "classification", "path": "train.csv", "evaluation_path": "test.csv", "tokenizer": "bytes"},
            **self.checkpointed()}))
        told = self.train(job, "--export", self.folder / "exported")["evaluations"][-1]
        found = self.ask("evaluate", self.saved)
        self.assertEqual((found["samples"], found["targets"], len(found["classes"])), (15, 15, 2))
        self.assertAlmostEqual(found["loss"], told["loss"], delta=1e-5)
        self.assertAlmostEqual(found["f1"], told["metrics"]["f1"], delta=1e-12)
        same = self.ask("evaluate", self.folder / "exported", "--job", job)
        self.assertAlmostEqual(same["loss"], found["loss"], delta=1e-6)
        self.assertEqual((same["accuracy"], same["f1"]), (found["accuracy"], found["f1"]))

    def test_text_goes_on_the_same_from_a_checkpoint_and_from_its_export(self):
        self.train(self.text_job(steps=30, **self.checkpointed()))
        prompt = ("--prompt", "the lamb and", "--tokens", 12)
        first = self.ask("generate", self.saved, *prompt)
        self.assertEqual(self.ask("generate", "last", *prompt)["tokens"], first["tokens"], "by its run")
        self.assertEqual((first["schema"], len(first["tokens"])), ("lockstep.generate/1", 12))
        self.ask("export", self.saved, "--to", self.folder / "model")
        again = self.ask("generate", self.folder / "model", *prompt, "--tokenizer", "bytes")
        self.assertEqual(again["tokens"], first["tokens"], "greedy")
        drawn = [self.ask("generate", self.saved, *prompt, "--temperature", "1.5", "--seed", seed)["tokens"] for seed in (1, 1, 2)]
        self.assertEqual(drawn[0], drawn[1], "the same seed")
        self.assertNotEqual(drawn[0], drawn[2], "another seed")
        likeliest = self.ask("generate", self.saved, *prompt, "--temperature", "1.5", "--top-k", 1)
        self.assertEqual(likeliest["tokens"], first["tokens"], "one to choose from")
        said = self.run_lockstep("generate", self.saved, *prompt).stdout
        self.assertEqual(said.encode(), ("the lamb and" + first["text"] + "\n").encode())

    def test_what_cannot_be_done_is_said(self):
        self.write_idx_mnist(train=64, test=16)
        self.train(self.mnist_job(ranks=1, **self.checkpointed()))
        self.expect_error(2, ["does not predict the next token"], "generate", self.saved, "--prompt", "a")
        self.expect_error(4, ["is not there"], "evaluate", self.folder / "nothing")
        shutil.rmtree(self.saved)
        self.expect_error(4, ["left no checkpoint", str(self.saved)], "evaluate", "last")
        self.expect_error(2, ["there is no checkpoint"], "evaluate", self.folder / "mnist")


if __name__ == "__main__":
    unittest.main(verbosity=2)
