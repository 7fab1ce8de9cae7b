"""A Ray cluster of several nodes on this machine, for drills and tests. Runs under a Python that has ray[default].

Usage: ray_cluster.py NODES CPUS; prints {"address", "ray": its version, "head": pid of the head's raylet} as
one line when it is up, and ends with its standard input.
"""
import json
import os
import pathlib
import shutil
import socket
import sys
import tempfile


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    nodes, cpus = int(sys.argv[1]), int(sys.argv[2])
    folder = tempfile.mkdtemp(prefix="lsray-", dir="/tmp")  # its sockets need a short path
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_TMPDIR=folder)
    (pathlib.Path(folder) / "ray").mkdir()
    import ray
    from ray.cluster_utils import Cluster

    port = free_port()
    store = {"object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, connect=False, head_node_args={
        "num_cpus": cpus, "gcs_server_port": free_port(), "include_dashboard": True, "dashboard_host": "127.0.0.1",
        "dashboard_port": port, **store})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(num_cpus=cpus, **store)
        cluster.wait_for_nodes()
        head = cluster.head_node.all_processes["raylet"][0].process.pid
        print(json.dumps({"address": f"http://127.0.0.1:{port}", "ray": ray.__version__, "head": head}), flush=True)
        sys.stdin.read()
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
