"""What a cluster makes of a manifest, played on one machine: pods are network, PID, mount and host-name namespaces
(bench/recovery/namespaces.py) in which the container's command runs, with its variables, its job file and the names of
its pods, which are known from the moment a pod is there and lead to another address when it is made anew. The Job's
policies for failed pods are obeyed as the manifest says. The cluster's objects are the files of fake_kubectl.py."""

import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"]) / "bench" / "recovery"))
import namespaces  # noqa: E402

BACKOFF_SECONDS = 3.0  # before a pod is made anew; 10 in Kubernetes
JOBS = ("JobSet", "TrainJob", "PyTorchJob")


class Pod:
    def __init__(self, node, name, host, container, variables):
        self.node, self.name, self.host, self.container, self.variables = node, name, host, container, variables
        self.space = None  # the namespace it runs in
        self.starts = 0
        self.process = None
        self.next_start = None  # when it is made anew
        self.over = False  # given up or done


def expand(text, variables):
    """$(NAME) and $$ as the kubelet replaces them."""
    return re.sub(r"\$\$|\$\(([A-Za-z_]\w*)\)",
                  lambda found: "$" if found[1] is None else variables.get(found[1], found[0]), text)


class Cluster:
    def __init__(self, folder, pods, environment):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir()
        self.environment = environment  # that of the image
        self.nodes = namespaces.Nodes(pods, prefix="lkp", network="10.83.17")
        self.free = list(self.nodes.numbers())
        self.job, self.pods, self.trouble = None, [], None
        self.ended = threading.Event()
        self.lock = threading.RLock()
        self.thread = threading.Thread(target=self.run)

    def up(self):
        self.nodes.up()
        self.hosts = self.nodes.folder / "hosts"
        self.hosts.write_text("127.0.0.1 localhost\n")
        self.thread.start()

    def down(self):
        self.ended.set()
        if self.thread.is_alive():
            self.thread.join(60)
        self.nodes.down()

    def run(self):
        while not self.ended.wait(0.1):
            try:
                with self.lock:
                    self.look()
            except Exception as trouble:  # told by the test
                self.trouble = trouble
                return

    # --- objects -----------------------------------------------------------------------------------------------------
    def load(self, kind):
        for path in self.folder.glob(f"{kind}-*.json"):
            return json.loads(path.read_text())
        return None

    def store(self, value):
        path = self.folder / f"{value['kind']}-{value['metadata']['name']}.json"
        path.with_suffix(".part").write_text(json.dumps(value))
        path.with_suffix(".part").replace(path)

    def look(self):
        if self.job is None:
            self.job = next(filter(None, map(self.load, JOBS)), None)
            if self.job:
                self.pods = list(self.pods_of(self.job))
                for pod in self.pods:
                    self.start(pod)
            return
        for pod in self.pods:
            if pod.process is not None and pod.process.poll() is not None:
                self.on_end(pod, pod.process.returncode)
            if pod.next_start and time.monotonic() >= pod.next_start:
                self.start(pod)

    def pods_of(self, job):
        name, spec = job["metadata"]["name"], job["spec"]
        if job["kind"] == "PyTorchJob":
            for kind, replica in spec["pytorchReplicaSpecs"].items():
                for i in range(replica["replicas"]):
                    host = f"{name}-{kind.lower()}-{i}"
                    yield Pod(i + (kind == "Worker"), host, host, replica["template"]["spec"]["containers"][0],
                              {"RANK": str(i + (kind == "Worker")), "WORLD_SIZE": "2", "MASTER_ADDR": f"{name}-master-0"})
            return
        trained = job["kind"] == "TrainJob"
        inner = spec["trainer"] if trained else spec["replicatedJobs"][0]["template"]["spec"]
        for i in range(inner["numNodes"] if trained else inner["completions"]):
            more = {"PET_NNODES": str(inner["numNodes"]), "PET_NPROC_PER_NODE": str(inner["numProcPerNode"]),
                    "PET_NODE_RANK": str(i), "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
                    "PET_MASTER_PORT": "29400"} if trained else {}
            container = inner if trained else inner["template"]["spec"]["containers"][0]
            yield Pod(i, f"{name}-node-0-{i}", f"{name}-node-0-{i}.{name}", container, more)

    # --- pods --------------------------------------------------------------------------------------------------------
    def variables_of(self, pod):
        variables = {}
        for entry in pod.container["env"]:
            source = entry.get("valueFrom", {})
            if "secretKeyRef" in source:
                value = self.load("Secret")["stringData"][source["secretKeyRef"]["key"]]
            elif "fieldRef" in source:
                assert source["fieldRef"]["fieldPath"] == "metadata.annotations['batch.kubernetes.io/job-completion-index']"
                value = str(pod.node)
            else:
                value = expand(entry.get("value", ""), variables)
            variables[entry["name"]] = value
        return {**variables, **pod.variables}

    def start(self, pod):
        pod.space, pod.next_start = self.free.pop(0), None
        pod.starts += 1
        etc = self.nodes.folder / f"etc{pod.space}"
        (etc / "upper" / "lockstep").mkdir(parents=True)
        (etc / "work").mkdir()
        config = self.load("ConfigMap")
        if config:
            (etc / "upper" / "lockstep" / "job.yaml").write_text(config["data"]["job.yaml"])
        self.name_hosts()
        variables = self.variables_of(pod)
        command = [expand(word, variables) for word in pod.container["command"]]
        log = self.folder / f"{self.pod_name(pod)}.log"
        script = " && ".join([
            f"mount -t overlay overlay -o lowerdir=/etc,upperdir={etc}/upper,workdir={etc}/work /etc",
            f"touch /etc/hosts && mount --bind {self.hosts} /etc/hosts",
            f"hostname {pod.name}",
            f"exec env -i {' '.join(shlex.quote(f'{k}={v}') for k, v in {**self.environment, **variables}.items())} "
            f"{' '.join(map(shlex.quote, command))} >> {log} 2>&1"])
        log.touch()
        pod.process = self.nodes.start_on(pod.space, script, stdin=subprocess.DEVNULL)
        self.set_state(pod, {"running": {}})

    def pod_name(self, pod):
        return f"{pod.name}-{pod.starts}"

    def name_hosts(self):
        names = [f"{self.nodes.address(pod.space)} {pod.host} {pod.name}\n" for pod in self.pods if pod.space]
        self.hosts.write_text("127.0.0.1 localhost\n" + "".join(names))  # the same file: all pods see it

    def set_state(self, pod, state):
        labels = {"lockstep/run": self.job["metadata"]["labels"]["lockstep/run"],
                  "batch.kubernetes.io/job-completion-index": str(pod.node)}
        self.store({"kind": "Pod", "metadata": {"name": self.pod_name(pod), "uid": self.pod_name(pod), "labels": labels},
                    "status": {"containerStatuses": [{"name": "node", "restartCount": 0, "state": state}]}})

    def on_end(self, pod, code):
        code = 128 - code if code < 0 else code
        pod.process = None
        self.nodes.end(pod.space)
        pod.space = None
        self.name_hosts()
        self.set_state(pod, {"terminated": {"exitCode": code}})
        if pod.over:
            return
        action = self.action_for(code)
        if action == "done":
            self.finish({"JobSet": "Completed", "TrainJob": "Complete", "PyTorchJob": "Succeeded"}[self.job["kind"]])
        elif action == "FailJob":
            self.finish("Failed")
        elif action == "FailIndex":
            pod.over = True
            if all(other.over for other in self.pods):
                self.finish("Failed")
        elif action == "again":
            pod.next_start = time.monotonic() + BACKOFF_SECONDS

    def action_for(self, code):
        if code == 0:
            return "done" if self.job["kind"] == "JobSet" or all(
                other.process is None for other in self.pods) else "wait"
        if self.job["kind"] != "JobSet":
            return "again"
        policy = self.job["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
        for rule in policy:
            if code in rule.get("onExitCodes", {}).get("values", []):
                return "again" if rule["action"] == "Ignore" else rule["action"]
        return "again"  # counted

    def finish(self, condition):
        for pod in self.pods:
            pod.over, pod.next_start = True, None
            if pod.process is not None:
                self.send(pod, signal.SIGTERM)  # those that are left, as a Job that is done or failed does
        current = self.load(self.job["kind"])
        current["status"] = {"conditions": [{"type": condition, "status": "True"}]}
        self.store(current)

    def send(self, pod, number):
        """To the container's process."""
        for child in self.nodes.call("pgrep", "-P", str(pod.process.pid), check=False).split():
            os.kill(int(child), number)

    # --- for tests ---------------------------------------------------------------------------------------------------
    def evict(self, node):
        with self.lock:
            self.send(self.pods[node], signal.SIGTERM)

    def lose_machine(self, node):
        """Without a word; the pod is made anew elsewhere."""
        with self.lock:
            pod = self.pods[node]
            self.nodes.cut(pod.space)
            self.nodes.end(pod.space)

    def logs(self):
        return "".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self.folder.glob("*.log")))
