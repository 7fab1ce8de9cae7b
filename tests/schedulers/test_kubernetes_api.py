"""Submits to a real API server: kube-apiserver and etcd, with the real definitions of JobSet, TrainJob and PyTorchJob.
There is no controller, so nothing runs; what is shown is that the server takes the objects, that kubectl and we agree
about them, and that not a field was dropped.

Debian has etcd (etcd-server) and kubectl (kubernetes-client), and the source of kube-apiserver in the source package
of the latter: docs/how-to/launch-on-kubernetes.md#against-a-real-api-server says how it is built. KUBE_APISERVER, ETCD
and KUBECTL name the programs where they are not in PATH; without them this is skipped."""

import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from kubernetes_cases import DEFINITIONS, SHARED, cases, definition, documents_of, probe

PROGRAMS = {name: os.environ.get(name.upper().replace("-", "_")) or shutil.which(name)
            for name in ("kube-apiserver", "etcd", "kubectl", "openssl")}
MISSING = [name for name, path in PROGRAMS.items() if not path]


def free_port():
    with socket.socket() as probe_socket:
        probe_socket.bind(("127.0.0.1", 0))
        return probe_socket.getsockname()[1]


class Server:
    """etcd and kube-apiserver on free ports of this machine, until stop()."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.processes = []
        store, peers, port = free_port(), free_port(), free_port()
        self.url = f"https://127.0.0.1:{port}"
        self.start("etcd", "--data-dir", self.folder / "etcd", "--listen-client-urls", f"http://127.0.0.1:{store}",
                   "--advertise-client-urls", f"http://127.0.0.1:{store}",
                   "--listen-peer-urls", f"http://127.0.0.1:{peers}", "--initial-advertise-peer-urls",
                   f"http://127.0.0.1:{peers}", "--initial-cluster", f"default=http://127.0.0.1:{peers}")
        key = self.folder / "key.pem"
        subprocess.run([PROGRAMS["openssl"], "genrsa", "-out", key, "2048"], check=True, capture_output=True)
        (self.folder / "tokens.csv").write_text('secret,admin,admin,"system:masters"\n')
        self.start("kube-apiserver", "--etcd-servers", f"http://127.0.0.1:{store}", "--secure-port", str(port),
                   "--bind-address", "127.0.0.1", "--cert-dir", self.folder / "certificates", "--token-auth-file",
                   self.folder / "tokens.csv", "--authorization-mode", "AlwaysAllow", "--service-cluster-ip-range",
                   "10.0.0.0/24", "--service-account-issuer", "https://localhost", "--service-account-key-file", key,
                   "--service-account-signing-key-file", key, "--disable-admission-plugins", "ServiceAccount")
        self.config = self.folder / "config"
        self.config.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "prod",
            "clusters": [{"name": "c", "cluster": {"server": self.url, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "prod", "context": {"cluster": "c", "user": "u", "namespace": "default"}}]}))
        self.wait_until_ready()

    def start(self, name, *arguments):
        with open(self.folder / f"{name}.log", "wb") as log:
            self.processes.append(subprocess.Popen([PROGRAMS[name], *map(str, arguments)], stdout=log, stderr=log))

    def wait_until_ready(self):
        trusting = ssl._create_unverified_context()
        for _ in range(600):
            try:
                request = urllib.request.Request(self.url + "/readyz", headers={"Authorization": "Bearer secret"})
                if urllib.request.urlopen(request, context=trusting, timeout=5).status == 200:
                    return
            except OSError:
                pass
            if any(process.poll() is not None for process in self.processes):
                break
            time.sleep(0.5)
        raise RuntimeError((self.folder / "kube-apiserver.log").read_text()[-2000:])

    def kubectl(self, *arguments, text=None, fails=False):
        done = subprocess.run([PROGRAMS["kubectl"], f"--kubeconfig={self.config}", *arguments], input=text,
                              capture_output=True, text=True, timeout=300)
        if (done.returncode != 0) != fails:
            raise AssertionError(f"{arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stderr if fails else done.stdout

    def define_kinds(self):
        for name in DEFINITIONS.values():
            made = definition(name)
            made.pop("status", None)
            # Debian's server (1.20) does not know the rules in CEL and drops them, and it takes an empty text as a
            # default for null.
            fill_empty_defaults(made)
            self.kubectl("create", "--validate=false", "-f", "-", text=json.dumps(made))
        for name in DEFINITIONS.values():
            self.kubectl("wait", "--for=condition=Established", "--timeout=60s",
                         f"crd/{definition(name)['metadata']['name']}")

    def stop(self):
        for process in reversed(self.processes):
            process.terminate()
            process.wait(60)


def fill_empty_defaults(schema):
    if isinstance(schema, dict):
        if schema.get("default") == "":
            schema["default"] = "unnamed"
        schema = list(schema.values())
    if isinstance(schema, list):
        for child in schema:
            fill_empty_defaults(child)


def dropped(sent, kept, path=""):
    """Fields that were sent and are not there any more."""
    if isinstance(sent, dict) and isinstance(kept, dict):
        for key, value in sent.items():
            if key in kept:
                yield from dropped(value, kept[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}"
    elif isinstance(sent, list) and isinstance(kept, list):
        if len(sent) != len(kept):
            yield path
        for i, (a, b) in enumerate(zip(sent, kept)):
            yield from dropped(a, b, f"{path}[{i}]")
    elif sent != kept:
        yield f"{path}: {sent!r} became {kept!r}"


@unittest.skipIf(MISSING or not SHARED.is_dir(), f"needs {', '.join(MISSING) or SHARED}")
class ApiServer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.server = Server(cls.folder.name)
        cls.addClassCleanup(cls.server.stop)
        os.environ["KUBECONFIG"] = str(cls.server.config)
        os.environ["PATH"] = f"{pathlib.Path(PROGRAMS['kubectl']).parent}:{os.environ['PATH']}"
        cls.server.define_kinds()
        cls.server.kubectl("create", "namespace", "team-a")
        print(cls.server.kubectl("version", "--short").strip(), file=sys.stderr)

    def test_every_manifest_is_taken_as_a_whole(self):
        count = 0
        for number, (what, request) in enumerate(cases()):
            run = f"20261116-120000-{number:06x}-demo"
            folder = pathlib.Path(self.folder.name) / run
            request["submission"].update(run=run, folder=str(folder))
            with self.subTest(what):
                documents = documents_of(probe("script", request))
                submitted = probe("submit", request)
                resource, space = submitted["place"]["resource"], submitted["place"]["namespace"]
                name = documents[-1]["metadata"]["name"]
                self.assertEqual(submitted["id"], f"{space}/{name}")
                for document, kind in zip(reversed(documents), (resource, "configmap", "secret")):
                    kind = document["kind"].lower() if document["kind"] in ("Secret", "ConfigMap") else resource
                    kept = json.loads(self.server.kubectl("get", kind, name, "-n", space, "-o", "json"))
                    document.pop("stringData", None)
                    self.assertEqual(list(dropped(document, kept)), [])
                    if kind != resource:
                        self.assertEqual(kept["metadata"]["ownerReferences"][0]["kind"], documents[-1]["kind"])
                on = {"on": request["on"], "submitted": submitted}
                state = probe("state", on)
                self.assertEqual((state["phase"], state["exit_code"]), ("queued", None))
                probe("cancel", on)
                self.assertEqual(probe("state", on)["phase"], "cancelled")
                left = self.server.kubectl("get", f"{resource},secrets,configmaps", "-A", "-l", f"lockstep/run={run}",
                                           "-o", "name")
                self.assertEqual(left, "")
            count += 1
        print(f"{count} submissions made, found and deleted", file=sys.stderr)

    def test_the_state_of_the_set_and_its_pods_is_read(self):
        request = dict(next(cases())[1])
        request["submission"].update(nodes=2, run="20261116-130000-aaaaaa-demo",
                                     folder=str(pathlib.Path(self.folder.name) / "state"))
        submitted = probe("submit", request)
        name = submitted["id"].split("/")[1]
        job = documents_of(probe("script", request))[-1]["spec"]["replicatedJobs"][0]["template"]["spec"]
        for index in range(2):
            self.make_pod(f"{name}-node-0-{index}-abcde", index, job["template"])
        on = {"on": "kubernetes", "submitted": submitted}
        self.assertEqual(probe("state", on)["phase"], "queued")
        for index in range(2):
            self.set_status(f"pods/{name}-node-0-{index}-abcde", {"phase": "Running", "containerStatuses": [
                container({"running": {}})]})
        self.assertEqual(probe("state", on)["detail"], "2 of 2 pods run")
        for index, code in enumerate((75, 3)):
            self.set_status(f"pods/{name}-node-0-{index}-abcde", {"phase": "Failed", "containerStatuses": [
                container({"terminated": {"exitCode": code}})]})
        self.set_status(f"jobsets.jobset.x-k8s.io/{name}", {"conditions": [
            {"type": "Failed", "status": "True", "reason": "FailedJobs", "message": "jobset failed",
             "lastTransitionTime": "2026-11-16T12:00:00Z"}]}, "apis/jobset.x-k8s.io/v1alpha2")
        state = probe("state", on)
        self.assertEqual((state["phase"], state["exit_code"]), ("failed", 3))
        probe("cancel", on)

    def make_pod(self, name, index, template):
        pod = {"apiVersion": "v1", "kind": "Pod", "spec": template["spec"],
               "metadata": {"name": name, "labels": template["metadata"]["labels"],
                            "annotations": {"batch.kubernetes.io/job-completion-index": str(index)}}}
        self.server.kubectl("create", "-f", "-", text=json.dumps(pod))
        self.addCleanup(self.server.kubectl, "delete", "pod", name, "--force", "--grace-period=0")

    def set_status(self, what, status, group="api/v1"):
        kind, name = what.split("/")
        url = f"{self.server.url}/{group}/namespaces/default/{kind.split('.')[0]}/{name}/status"
        request = urllib.request.Request(url, method="PATCH", data=json.dumps({"status": status}).encode(), headers={
            "Authorization": "Bearer secret", "Content-Type": "application/merge-patch+json"})
        urllib.request.urlopen(request, context=ssl._create_unverified_context(), timeout=60).read()

    def test_a_misspelt_field_is_refused_by_kubectl(self):
        document = documents_of(probe("script", next(cases())[1]))[-1]
        document["spec"]["replicatedJobs"][0]["template"]["spec"]["complitions"] = 2
        said = self.server.kubectl("create", "--validate=true", "-f", "-", text=json.dumps(document), fails=True)
        self.assertIn("complitions", said)

    def test_a_refusal_leaves_nothing_behind(self):
        request = dict(next(cases())[1])
        request["launch"] += "    queue: \"not a label value!\"\n"
        request["submission"].update(run="20261116-140000-bbbbbb-demo",
                                     folder=str(pathlib.Path(self.folder.name) / "refused"))
        answer = probe("submit", request, check=False)
        self.assertIn("error", answer)
        left = self.server.kubectl("get", "jobsets,secrets,configmaps", "-l",
                                   "lockstep/run=20261116-140000-bbbbbb-demo", "-o", "name")
        self.assertEqual(left, "")


def container(state):
    return {"name": "node", "restartCount": 0, "state": state, "ready": True, "image": "i", "imageID": "i"}


if __name__ == "__main__":
    unittest.main(verbosity=1)
