"""Submit, follow and cancel through kubectl; the cluster is a folder (fake_kubectl.py)."""

import json
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from kubernetes_cases import probe

try:
    import yaml
except ImportError:
    yaml = None

RUN = "20261116-120000-abcdef-demo"
NAME = "r" + RUN
KINDS = {"JobSet": ("kubernetes", ""), "TrainJob": ("kubeflow", "kind: trainjob"),
         "PyTorchJob": ("kubeflow", "kind: pytorchjob")}


@unittest.skipIf(yaml is None, "needs python3-yaml")
class Kubectl(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.cluster = pathlib.Path(folder.name) / "cluster"
        self.cluster.mkdir()
        self.files = pathlib.Path(folder.name) / "files"
        os.environ["FAKE_CLUSTER"] = str(self.cluster)
        os.environ.pop("FAKE_REFUSES", None)

    def request(self, kind, more="", **submission):
        on, own = KINDS[kind]
        kubectl = pathlib.Path(__file__).with_name("fake_kubectl.py")
        section = ", ".join(part for part in (f"kubectl: {kubectl}", own, more) if part)
        return {"on": on, "launch": f"image: i\n{on}: {{{section}}}",
                "submission": {"folder": str(self.files), "run": RUN, "job": "steps: 1\n", **submission}}

    def submit(self, kind, more=""):
        return {"on": KINDS[kind][0], "submitted": probe("submit", self.request(kind, more))}

    def objects(self):
        return sorted(path.stem.split("-")[0] for path in self.cluster.glob("*.json"))

    def load(self, kind):
        return json.loads((self.cluster / f"{kind}-{NAME}.json").read_text())

    def set_status(self, kind, **status):
        value = self.load(kind)
        value["status"] = status
        (self.cluster / f"{kind}-{NAME}.json").write_text(json.dumps(value))

    def put_pod(self, name, node, state, restarts=0, log="", kind="JobSet"):
        labels = {"lockstep/run": RUN, "batch.kubernetes.io/job-completion-index": str(node)}
        if kind == "PyTorchJob":
            labels = {"lockstep/run": RUN, "training.kubeflow.org/replica-index": str(max(0, node - 1)),
                      "training.kubeflow.org/replica-type": "worker" if node > 0 else "master"}
        (self.cluster / f"Pod-{name}.json").write_text(json.dumps({
            "kind": "Pod", "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels},
            "status": {"containerStatuses": [{"name": "node", "restartCount": restarts, "state": state}]}}))
        (self.cluster / f"{name}.log").write_text(log)

    def test_all_objects_are_made_and_belong_to_the_job(self):
        for kind in KINDS:
            with self.subTest(kind):
                submitted = self.submit(kind)["submitted"]
                self.assertEqual(submitted["id"], f"default/{NAME}")
                self.assertEqual(self.objects(), sorted(["ConfigMap", kind, "Secret"]))
                for part in ("Secret", "ConfigMap"):
                    owner = self.load(part)["metadata"]["ownerReferences"][0]
                    self.assertEqual((owner["kind"], owner["name"], owner["uid"]), (kind, NAME, f"uid-of-{kind}"))
                for file in self.cluster.glob("*.json"):
                    file.unlink()

    def test_the_namespace_and_context_are_those_asked_for(self):
        self.submit("JobSet", "namespace: team-a, context: prod")
        for line in (self.cluster / "asked").read_text().splitlines():
            self.assertEqual(json.loads(line)[:2], ["--context=prod", "--namespace=team-a"])
        self.assertEqual(self.load("Secret")["metadata"]["namespace"], "team-a")

    def test_the_token_is_never_an_argument(self):
        self.submit("JobSet")
        self.assertEqual(self.load("Secret")["stringData"], {"token": "s3cret"})
        self.assertNotIn("s3cret", (self.cluster / "asked").read_text())

    def test_a_refusal_is_told_and_leaves_nothing_behind(self):
        os.environ["FAKE_REFUSES"] = "JobSet"
        answer = probe("submit", self.request("JobSet"), check=False)
        self.assertIn("ensure CRDs are installed first", answer["error"])
        self.assertEqual(self.objects(), [])

    def test_another_process_with_other_settings_finds_the_run(self):
        on = self.submit("PyTorchJob", "namespace: team-a")
        self.put_pod("m", 0, {"running": {}}, kind="PyTorchJob")
        self.assertEqual(probe("state", on)["phase"], "running")
        probe("cancel", on)
        self.assertEqual(self.objects(), ["Pod"])
        state = probe("state", on)
        self.assertEqual((state["phase"], state["detail"]), ("running", "deleted; pods that still save: 1"))
        (self.cluster / "Pod-m.json").unlink()
        self.assertEqual(probe("state", on)["phase"], "cancelled")

    def test_a_server_that_does_not_answer_is_not_the_end(self):
        on = self.submit("JobSet")
        (self.cluster / "down").touch()
        state = probe("state", on)
        self.assertEqual(state["phase"], "queued")
        self.assertIn("refused", state["detail"])

    def test_logs_of_all_nodes_are_followed_until_the_end(self):
        for kind, done in (("JobSet", "Completed"), ("TrainJob", "Complete"), ("PyTorchJob", "Succeeded")):
            with self.subTest(kind):
                on = self.submit(kind)
                self.put_pod("a", 0, {"terminated": {"exitCode": 0}}, log="step 1\nstep 2\n", kind=kind)
                self.put_pod("b", 1, {"terminated": {"exitCode": 0}}, log="joined", kind=kind)
                self.put_pod("c", 2, {"waiting": {"reason": "Pulling"}}, log="not yet", kind=kind)
                self.set_status(kind, conditions=[{"type": done, "status": "True"}])
                followed = probe("log", on)
                self.assertEqual((followed["phase"], followed["exit_code"]), ("done", 0))
                self.assertIn("step 1\nstep 2\n", followed["log"])
                self.assertIn("[node 1] joined\n", followed["log"])
                self.assertNotIn("not yet", followed["log"])

    def test_a_failed_run_has_its_exit_code(self):
        on = self.submit("TrainJob")
        self.put_pod("a", 0, {"terminated": {"exitCode": 2}}, restarts=1)
        self.set_status("TrainJob", conditions=[{"type": "Failed", "status": "True", "message": "jobset failed"}])
        state = probe("state", on)
        self.assertEqual((state["phase"], state["exit_code"], state["starts"]), ("failed", 2, 1))

    def test_hostile_names_do_not_become_flags(self):
        request = self.request("JobSet", more="namespace: a, context: \"--x\\\"; rm -rf\"", name="--all $(x)")
        request["submission"]["run"] = "--all_$(x)"
        submitted = probe("submit", request)
        self.assertEqual(submitted["id"], "a/all-x")
        for line in (self.cluster / "asked").read_text().splitlines():
            self.assertEqual(json.loads(line)[0], "--context=--x\"; rm -rf")


if __name__ == "__main__":
    unittest.main(verbosity=1)
