"""Submissions whose manifests are checked, and what reads them. Shared by the tests of this folder."""

import gzip
import itertools
import json
import os
import pathlib
import subprocess

SHARED = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"]).resolve().parent / "shared/data/ops/kubernetes"
PROBE = pathlib.Path(os.environ["LOCKSTEP_BUILD_DIR"]) / "tests/scheduler_probe"

JOB = "model: gpt2-124m\ncluster: 4x8xH100\nsteps: 10\n"

# Each key of the sections at least once.
FULL = """
    namespace: team-a
    context: prod
    queue: training
    service_account: trainer
    image_pull_secret: registry
    gpu: amd.com/gpu
    rdma: {rdma/ib: 1, vpc.amazonaws.com/efa: 4}
    shared_memory: 64GiB
    node_selector: {cloud.google.com/gke-accelerator: nvidia-h100-80gb, "12": "yes"}
    tolerations: [{key: nvidia.com/gpu, effect: NoSchedule}, {key: spot, value: "true"}, {operator: Exists}]
    volumes:
      - {claim: checkpoints, path: /data}
      - {claim: corpus, path: /corpus, sub_path: v2, read_only: true}
      - {secret: credentials, path: /etc/credentials, read_only: true}
      - {config_map: tables, path: /etc/tables}
      - {host_path: /mnt/nvme, path: /scratch}
    labels: {team: research}
    annotations: {sidecar.istio.io/inject: "false"}
    home: /data/home
    port: 29500
    user: 1000
"""
COMMON = """
image: registry.example.com/lockstep:1.0
spares: 1
time: 4h
notice: 2m
cpus_per_node: 96
memory_per_node: 1TiB
environment: {NCCL_DEBUG: INFO, ODD: "$(HOME) 'x' \\"y\\""}
"""
KINDS = {
    "jobset": ("kubernetes", "", "    keep: 2h\n    restarts: 3\n    priority: high\n    image_pull_policy: Always\n"),
    "jobset in place": ("kubernetes", "    restart: container\n", ""),
    "trainjob": ("kubeflow", "    kind: trainjob\n", "    runtime: torch-large\n    namespaced_runtime: true\n"),
    "pytorchjob": ("kubeflow", "    kind: pytorchjob\n", "    keep: 2h\n    priority: high\n"),
}


def probe(verb, request, check=True):
    done = subprocess.run([PROBE, verb], input=json.dumps(request), capture_output=True, text=True, timeout=300)
    answer = json.loads(done.stdout)
    if check and done.returncode != 0:
        raise AssertionError(answer)
    return answer


def cases():
    """(name, request) of every kind: bare and full, one node and several, a job and a foreign program, CPU and GPU."""
    for name, (on, own, more) in KINDS.items():
        for full, nodes, foreign in itertools.product((False, True), (1, 4), (False, True)):
            launch = f"image: lockstep\n{on}:\n    port: 29400\n{own}" if not full else f"{COMMON}{on}:\n{own}{more}{FULL}"
            submission = {"nodes": nodes, "device": "H100" if full else "cpu"}
            if foreign:
                submission["command"] = ["python3", "train.py", "--out=$(date)"]
            else:
                submission["job"] = JOB
            what = f"{name}, {'full' if full else 'bare'}, {nodes} nodes, {'program' if foreign else 'job'}"
            yield what, {"on": on, "launch": launch, "submission": submission}


def documents_of(script):
    """Of all files, as a reader of YAML 1.1 sees them."""
    import yaml

    return [doc for file in script["files"] for doc in yaml.safe_load_all(file["text"])]


def definition(name):
    import yaml

    with gzip.open(SHARED / f"{name}_crd.yaml.gz", "rt") as file:
        return yaml.load(file, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


DEFINITIONS = {"JobSet": "jobset", "TrainJob": "trainjob", "PyTorchJob": "pytorchjob",
               "ClusterTrainingRuntime": "clustertrainingruntime"}
