"""Runs what the manifests say: real agents in pods of one machine, under the names and with the policies of a JobSet, a
TrainJob and a PyTorchJob, submitted and followed by `lockstep launch --on`. Pods are evicted and their machines lost.
Needs root (namespaces)."""

import os
import pathlib
import sys
import unittest

sys.path[:0] = [str(pathlib.Path(__file__).parent),
                str(pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"]) / "tests" / "end_to_end")]
from harness import *  # noqa: E402,F403
import pods  # noqa: E402

try:
    import yaml
except ImportError:
    yaml = None

WHY_NOT = pods.namespaces.why_not() or ("" if yaml else "needs python3-yaml")


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Pods(EndToEnd):
    def setUp(self):
        super().setUp()
        image = {k: v for k, v in self.environment.items() if not k.startswith("LOCKSTEP_")}
        self.cluster = pods.Cluster(self.folder / "cluster", 10, image)
        self.addCleanup(self.cluster.down)
        self.cluster.up()
        self.environment["FAKE_CLUSTER"] = str(self.cluster.folder)
        self.checkpoints = self.folder / "checkpoints"

    def job(self, on, section=None, nodes=2, steps=400, **launch):
        kubectl = pathlib.Path(__file__).with_name("fake_kubectl.py")
        job = self.text_job(cluster=f"{nodes}x1xcpu", steps=steps,
                            checkpoint={"directory": str(self.checkpoints), "every_steps": 20, "keep": 3},
                            launch={"image": "none", "lockstep": LOCKSTEP, **launch,
                                    on: {"kubectl": str(kubectl), "home": str(self.folder / "pod-home"), **(section or {})}})
        return job

    def undisturbed(self, job):
        result = self.train(job)
        self.checkpoints.rename(self.folder / "undisturbed")
        return result

    def begin(self, on, job):
        process = self.start("launch", "--on", on, job, "--json")
        self.addCleanup(process.kill)
        return process

    def end(self, process):
        try:
            out, err = process.communicate(timeout=600)
        except subprocess.TimeoutExpired:
            self.fail(f"still running\n{self.cluster.logs()}")
        self.assertIsNone(self.cluster.trouble)
        self.assertEqual(process.returncode, 0, f"{out}\n{err}\n{self.cluster.logs()}")
        return json.loads(out.strip().splitlines()[-1]), err

    def saved(self):
        return sorted(int(path.name.split("-")[1]) for path in self.checkpoints.glob("step-*"))

    def until(self, condition):
        wait_for(lambda: self.cluster.trouble or condition(), timeout=300)
        self.assertIsNone(self.cluster.trouble)

    def test_a_lost_machine_is_replaced_and_its_pod_comes_back_at_another_address(self):
        job = self.job("kubernetes", spares=1, steps=3000)
        expected = self.undisturbed(job)
        process = self.begin("kubernetes", job)
        self.until(lambda: len(self.saved()) > 1)
        first = self.cluster.pods[0].space
        self.cluster.lose_machine(0)  # leads
        self.until(lambda: self.cluster.pods[0].starts == 2)
        self.assertNotEqual(self.cluster.pods[0].space, first)
        result, said = self.end(process)
        self.assertEqual(result["final_loss"], expected["final_loss"])
        self.assertEqual(result["world"], 2)
        self.assertIn("is lost", said)
        self.assertRegex(said, r"goes on after step \d+ from the memory of the ranks")
        self.assertNotIn("resumed from", said)
        self.assertEqual([pod.starts for pod in self.cluster.pods], [2, 1, 1])

    def test_an_evicted_pod_saves_and_the_run_goes_on_when_all_are_back(self):
        job = self.job("kubernetes")
        expected = self.undisturbed(job)
        process = self.begin("kubernetes", job)
        self.until(lambda: len(self.saved()) > 1)
        self.cluster.evict(1)
        self.until(lambda: all(pod.starts == 2 for pod in self.cluster.pods))
        result, _ = self.end(process)
        self.assertEqual(result["final_loss"], expected["final_loss"])

    def test_a_job_that_cannot_run_is_not_tried_again(self):
        job = self.job("kubernetes", environment={"LOCKSTEP_INTERFACE": "no-such-card"})
        process = self.begin("kubernetes", job)
        out, err = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 2, f"{out}\n{err}\n{self.cluster.logs()}")
        self.assertIn("no-such-card", err)
        self.assertEqual({pod.starts for pod in self.cluster.pods}, {1})

    def test_agents_of_a_trainjob_find_each_other(self):
        self.agents_find_each_other("trainjob")

    def test_agents_of_a_pytorchjob_find_each_other(self):
        self.agents_find_each_other("pytorchjob")

    def agents_find_each_other(self, kind):
        job = self.job("kubeflow", {"kind": kind}, steps=40)
        expected = self.undisturbed(job)
        result, _ = self.end(self.begin("kubeflow", job))
        self.assertEqual((result["final_loss"], result["world"]), (expected["final_loss"], 2))


if __name__ == "__main__":
    unittest.main()
