"""Training as such: learns, does not depend on the number of ranks, is recorded."""
import pathlib

from harness import *


class Training(EndToEnd):
    def test_two_ranks_equal_one_in_fp64(self):
        self.write_idx_mnist()
        fields = {"precision": "fp64"}
        one = self.losses(self.train(self.mnist_job(ranks=1, **fields))["run"])
        two = self.losses(self.train(self.mnist_job(ranks=2, **fields))["run"])
        self.assertEqual(one.keys(), two.keys())
        worst = max(abs(one[step] - two[step]) / abs(one[step]) for step in one)
        print(f"worst relative difference of {len(one)} losses: {worst:.1e}")
        self.assertLess(worst, 1e-10)

    def test_accumulation_equals_a_larger_micro_batch_in_fp64(self):
        base = {"precision": "fp64", "steps": 12}
        whole = self.train(self.text_job(ranks=2, batch={"micro": 8, "sequence_length": 32}, **base))
        parts = self.train(self.text_job(ranks=2, batch={"micro": 2, "accumulation": 4, "sequence_length": 32}, **base))
        for step, loss in self.losses(whole["run"]).items():
            self.assertAlmostEqual(self.losses(parts["run"])[step], loss, delta=1e-10 * loss)
        # Gradients travel once per optimizer step, not once per micro-step; small exchanges may differ.
        self.assertLess(abs(whole["communicated_bytes"] / parts["communicated_bytes"] - 1), 0.01)

    def test_the_cnn_learns(self):
        self.write_idx_mnist(train=1024)
        result = self.train(self.mnist_job(ranks=2, epochs=2))
        self.assertGreater(result["evaluations"][-1]["accuracy"], 0.9)
        self.assertIsNone(result["tokens_per_second"])
        self.assertGreater(result["samples_per_second"], 0)

    def test_the_last_line_has_the_documented_keys(self):
        result = self.train(self.text_job(steps=3))
        for key in ("schema", "run", "status", "steps", "final_loss", "tokens_per_second", "mfu_or_efficiency",
                    "predicted_tokens_per_second", "peak_memory_bytes", "restarts", "lost_steps"):
            self.assertIn(key, result)
        self.assertEqual(result["schema"], "lockstep.run/1")

    def test_bf16_follows_fp32(self):
        full = self.train(self.text_job(steps=60))
        half = self.train(self.text_job(steps=60, precision="bf16"))
        self.assertLess(abs(half["final_loss"] - full["final_loss"]) / full["final_loss"], 0.05)

    def test_every_compression_learns(self):
        start = self.train(self.text_job(steps=1))["final_loss"]
        for compression in ("fp16", "bf16", "powersgd", "onebit"):
            with self.subTest(compression=compression):
                done = self.train(self.text_job(steps=80, communication={"compression": compression}))
                self.assertLess(done["final_loss"], 0.75 * start)

    def test_a_calibrated_machine_predicts(self):
        job = self.text_job(ranks=2, steps=30)
        done = self.run_lockstep("calibrate", job, "--quick", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = self.train(job)
        self.assertGreater(result["predicted_tokens_per_second"], 0)

    def test_a_calibrated_machine_prices_layouts_that_it_does_not_train(self):
        job = self.text_job(ranks=2, steps=1)
        done = self.run_lockstep("calibrate", job, "--quick", "--output", "here.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        seconds = {}
        for layout in ("dp=2", "tp=2", "shard=2", "pp=2"):
            done = self.run_lockstep("plan", job, "--profile", "./here.json", "--layout", layout, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            best = json.loads(done.stdout)["best"]
            seconds[layout] = best["prediction"]["step_seconds"]
            self.assertEqual(best["breakdown_seconds"]["tp_comm"] > 0, layout == "tp=2")
        self.assertGreater(min(seconds.values()), 0)

    def test_a_build_without_cuda_says_so(self):
        if pathlib.Path("/dev/nvidia0").exists():
            self.skipTest("this machine has a GPU")
        self.expect_error(4, ["CUDA"], "calibrate", "--device", "cuda")

    def test_a_dry_run_shows_the_plan_and_trains_nothing(self):
        done = self.run_lockstep("train", self.text_job(), "--dry-run", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["schema"], "lockstep.plan/1")
        self.assertFalse((self.folder / "home" / "runs.db").exists())

    def test_doctor_passes_here(self):
        done = self.run_lockstep("doctor", "--json")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


@timing
class TrainingTiming(EndToEnd):
    def test_a_calibrated_machine_predicts_what_it_measures(self):
        job = self.text_job(ranks=2, steps=30)
        self.assertEqual(self.run_lockstep("calibrate", job, "--quick", "--json").returncode, 0)
        result = self.train(job)
        predicted, measured = result["predicted_tokens_per_second"], result["tokens_per_second"]
        print(f"predicted {predicted:.0f}, measured {measured:.0f} tokens/s")
        self.assertLess(max(predicted / measured, measured / predicted), 2)

    def test_layouts_of_two_ranks_are_priced_within_an_order_of_magnitude(self):
        job = self.text_job(ranks=2, steps=1)
        self.assertEqual(self.run_lockstep("calibrate", job, "--quick", "--output", "here.json").returncode, 0)
        seconds = []
        for layout in ("dp=2", "tp=2", "shard=2", "pp=2"):
            done = self.run_lockstep("plan", job, "--profile", "./here.json", "--layout", layout, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            seconds.append(json.loads(done.stdout)["best"]["prediction"]["step_seconds"])
        self.assertLess(max(seconds), 5 * min(seconds))


if __name__ == "__main__":
    unittest.main(verbosity=2)
