#!/usr/bin/env python3
"""A kubectl whose cluster is a folder (FAKE_CLUSTER): objects that were created, one file each, and pods that the test
puts there. Refuses words that the real one would not understand, and keeps the list of what it was asked."""

import json
import os
import pathlib
import sys
import time

import yaml

cluster = pathlib.Path(os.environ["FAKE_CLUSTER"])
RESOURCES = {"jobsets.jobset.x-k8s.io": "JobSet", "trainjobs.trainer.kubeflow.org": "TrainJob",
             "pytorchjobs.kubeflow.org": "PyTorchJob", "pods": "Pod", "secrets": "Secret", "configmaps": "ConfigMap",
             "secret": "Secret", "configmap": "ConfigMap"}
FLAGS = {"--context", "--namespace", "--filename", "--output", "--selector", "--type", "--patch", "--wait", "--follow",
         "--since"}


def fail(text):
    print(text, file=sys.stderr)
    sys.exit(1)


def write(path, value):
    """Whole or not at all: others are reading."""
    part = path.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(value))
    part.replace(path)


def files_of(kinds, labels=None, name=None):
    for file in sorted(cluster.glob("*.json")):
        value = json.loads(file.read_text())
        metadata = value["metadata"]
        if value["kind"] not in kinds or (name and metadata["name"] != name):
            continue
        if labels and any(metadata.get("labels", {}).get(k) != v for k, v in labels):
            continue
        yield file, value


def main():
    with open(cluster / "asked", "a") as asked:
        asked.write(json.dumps(sys.argv[1:]) + "\n")
    if (cluster / "down").exists():
        fail("The connection to the server 127.0.0.1:6443 was refused")
    flags = [word.partition("=")[::2] for word in sys.argv[1:] if word.startswith("-")]
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    for name, _ in flags:
        if name not in FLAGS:
            fail(f"error: unknown flag: {name}")
    given = dict(flags)
    space = given.get("--namespace") or "default"
    labels = [pair.split("=") for pair in given.get("--selector", "").split(",") if pair]
    if words[0] == "create":
        for name, value in flags:
            if name == "--filename":
                create(pathlib.Path(value), space)
    elif words[0] == "get":
        kinds = [RESOURCES[name] for name in words[1].split(",")]
        found = [value for _, value in files_of(kinds, labels, words[2] if len(words) > 2 else None)]
        if len(words) > 2 and not found:
            fail(f'Error from server (NotFound): "{words[2]}" not found')
        print(json.dumps(found[0] if len(words) > 2 else {"kind": "List", "items": found}))
    elif words[0] == "patch":
        for file, value in files_of([RESOURCES[words[1]]], name=words[2]):
            value["metadata"].update(json.loads(given["--patch"])["metadata"])
            write(file, value)
    elif words[0] == "delete":
        for file, _ in list(files_of([RESOURCES[name] for name in words[1].split(",")], labels)):
            file.unlink()
    elif words[0] == "logs":
        show_log(words[1])
    else:
        fail(f"error: unknown command {words[0]}")


def show_log(name):
    """Until the pod does not run any more."""
    with open(cluster / f"{name}.log") as log:
        while True:
            pods = [value for _, value in files_of(["Pod"], name=name)]
            running = pods and "running" in pods[0]["status"]["containerStatuses"][0]["state"]
            print(log.read(), end="", flush=True)
            if not running:
                return
            time.sleep(0.1)


def create(path, space):
    for value in yaml.safe_load_all(path.read_text()):
        if value["kind"] == os.environ.get("FAKE_REFUSES"):
            fail(f'error: no matches for kind "{value["kind"]}"\nensure CRDs are installed first')
        value["metadata"].setdefault("namespace", space)
        value["metadata"]["uid"] = f"uid-of-{value['kind']}"
        write(cluster / f"{value['kind']}-{value['metadata']['name']}.json", value)


main()
