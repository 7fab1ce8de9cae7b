"""A node whose hardware fails is refused before the start, and left out during the run; notices end a run in time."""
import http.server
import os
import pathlib
import threading

from harness import *

BROKEN = "Memory failure: 0x7f2b3: Killing lockstep:1 due to hardware memory corruption\n"


class NodeHealth(SeveralNodes):
    def setUp(self):
        super().setUp()
        self.logs = {}

    def agent(self, job, node):
        """Each node reads a kernel log of its own."""
        self.logs[node] = self.folder / f"kernel-{node}.log"
        self.logs[node].touch()
        process = self.start("launch", job, "--json", "--nodes", self.addresses, "--node", node,
                             environment={"LOCKSTEP_KERNEL_LOG": str(self.logs[node])})
        self.addCleanup(self.kill, process)
        return process

    def breaks(self, node):
        with self.logs[node].open("a") as log:
            log.write(BROKEN)

    def events(self):
        import sqlite3
        with sqlite3.connect(f"file:{self.folder}/home/runs.db?mode=ro", uri=True, timeout=5) as store:
            return store.execute("SELECT level, message FROM events WHERE kind = 'node_health'").fetchall()

    def left(self, node):
        """What the agent of a node that left the run said."""
        out, err = self.agents[node].communicate(timeout=600)
        self.assertEqual(self.agents[node].returncode, 4, out + err)
        return err

    def test_a_spare_node_takes_the_place_of_an_unhealthy_one(self):
        job = self.text_job(cluster="2x1xcpu", steps=300)
        whole = self.train(job)
        self.begin(job, 3)
        used = self.world(1)
        wait_for(lambda: self.recorded_steps() > 3)
        self.breaks(used[1])
        self.assertEqual(self.world(2), [0, 3 - used[1]])
        self.assertIn("hardware memory corruption", self.left(used[1]))
        del self.agents[used[1]]
        result = self.ends()
        self.assertEqual(result["final_loss"], whole["final_loss"])
        self.assertEqual(result["restarts"], 1)
        self.assertIn("memory of this node is broken", str(self.events()))

    def test_the_node_that_leads_hands_the_run_over_when_it_is_unhealthy(self):
        job = self.text_job(cluster="3x1xcpu", steps=300)
        whole = self.train(job)
        self.begin(job, 3)
        self.assertEqual(self.world(1), [0, 1, 2])
        wait_for(lambda: self.recorded_steps() > 3)
        self.breaks(0)
        self.assertEqual(self.world(2), [1, 2])
        self.assertIn("left the run", self.left(0))
        del self.agents[0]
        result = self.ends()
        self.assertEqual((result["restarts"], result["world"]), (1, 2))
        self.assert_same_losses(result["run"], whole["run"])
        report = json.loads(self.run_lockstep("report", result["run"], "--json").stdout)
        self.assertEqual(report["run"]["status"], "done")

    def test_an_unhealthy_node_that_nobody_can_replace_is_kept(self):
        job = self.text_job(ranks=2, steps=100000)
        log = self.folder / "kernel.log"
        log.touch()
        process = self.start("train", job, environment={"LOCKSTEP_KERNEL_LOG": str(log)})
        wait_for(lambda: self.recorded_steps() > 3)
        log.write_text(BROKEN)
        wait_for(self.events)
        before = self.recorded_steps()
        wait_for(lambda: self.recorded_steps() > before + 3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 130, out + err)
        self.assertIn("no other node can take over", out)
        self.assertEqual([level for level, _ in self.events()], [3])  # an error

    def test_a_node_with_an_old_fault_is_refused_before_the_start(self):
        job = self.text_job(ranks=2, steps=3)
        log = self.folder / "kernel.log"
        log.write_text(BROKEN)
        environment = {"LOCKSTEP_KERNEL_LOG": str(log)}
        self.expect_error(4, ["is not fit to train: memory", "have the memory module replaced"], "train", job,
                          environment=environment)
        self.assertEqual(self.recorded_steps(), 0)
        self.train(job, "health.node_checks=record", environment=environment)
        self.train(job, "health.node_checks=off", environment=environment)

    def test_a_checkpoint_folder_that_cannot_be_written_is_refused_before_the_start(self):
        job = self.text_job(ranks=2, steps=3, checkpoint={"directory": "/proc/lockstep-checkpoints"})
        self.expect_error(4, ["the checkpoint folder", "/proc"], "train", job)

    def test_health_lists_this_machine_and_says_what_is_fatal(self):
        log = self.folder / "kernel.log"
        log.touch()
        environment = {"LOCKSTEP_KERNEL_LOG": str(log)}
        done = self.run_lockstep("health", "--json", environment=environment)
        found = json.loads(done.stdout)
        self.assertEqual((done.returncode, found["schema"], found["ok"]), (0, "lockstep.health/1", True), done.stdout)
        self.assertLessEqual({"disk", "memory", "link", "kernel"}, {row["check"] for row in found["findings"]})
        log.write_text(BROKEN)
        done = self.run_lockstep("health", environment=environment)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("FATAL", done.stdout)
        self.assertIn("-> have the memory module replaced", done.stdout)


class Interface(SeveralNodes):
    def listeners(self):
        """{port: address} of the sockets that listen on IPv4."""
        found = {}
        for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
            address, port = line.split()[1].split(":")
            if line.split()[3] == "0A":
                found[int(port, 16)] = ".".join(str(byte) for byte in reversed(bytes.fromhex(address)))
        return found

    def other_interface(self):
        """A network interface beside loopback, and its address."""
        import fcntl
        import socket
        import struct
        for _, name in socket.if_nameindex():
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                try:
                    answer = fcntl.ioctl(probe.fileno(), 0x8915, struct.pack("256s", name.encode()))
                except OSError:
                    continue
            address = socket.inet_ntoa(answer[20:24])
            if not address.startswith("127."):
                return name, address
        self.skipTest("needs a network interface beside loopback")

    def test_an_interface_that_is_not_there_is_refused_with_those_that_are(self):
        job = self.text_job(ranks=2, steps=3)
        self.expect_error(2, ["\"eth99\"", "lo (127.0.0.1)"], "train", job, "--interface", "eth99")
        self.expect_error(2, ["\"eth98\""], "train", job, environment={"LOCKSTEP_INTERFACE": "eth98"})

    def test_nodes_named_by_addresses_of_another_interface_are_refused(self):
        name, address = self.other_interface()
        job = self.text_job(cluster="2x1xcpu", steps=3)
        self.expect_error(2, ["127.0.0.1", f"{name} has {address}"], "launch", job, "--nodes",
                          "127.0.0.1:29501,127.0.0.1:29502", "--node", 0, "--interface", name)

    def trains_over_interface(self, backend):
        name, address = self.other_interface()
        job = self.text_job(cluster="2x1xcpu", steps=100000)
        ports = [free_port(), free_port()]
        nodes = ",".join(f"{address}:{port}" for port in ports)
        self.environment["LOCKSTEP_TOKEN"] = "of this test"
        for node in range(2):
            self.agents[node] = self.start("launch", job, "--nodes", nodes, "--node", node, "--interface", name,
                                           "--backend", backend)
            self.addCleanup(self.kill, self.agents[node])
        self.world(1)
        wait_for(lambda: self.recorded_steps() > 3)
        listeners = self.listeners()
        self.assertEqual([listeners.get(port) for port in ports], [address, address])
        pids = [pid for told in (self.folder / "home" / "runs").glob("*/node-*/ranks.json")
                for pid in json.loads(told.read_text())["pids"]]
        for pid in pids:
            variables = pathlib.Path(f"/proc/{pid}/environ").read_text().split("\0")
            self.assertIn(f"NCCL_SOCKET_IFNAME=={name}", variables)
            self.assertIn(f"GLOO_SOCKET_IFNAME={name}", variables)
            self.assertEqual(self.addresses_of(pid), {address})
        self.agents[0].send_signal(signal.SIGINT)
        for process in self.agents.values():
            out, err = process.communicate(timeout=600)
            self.assertEqual(process.returncode, 130, out + err)

    def addresses_of(self, pid):
        """The addresses of this end of every IPv4 connection that a process has."""
        sockets = set()
        for name in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
        found = set()
        for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in sockets:
                found.add(".".join(str(byte) for byte in reversed(bytes.fromhex(fields[1].split(":")[0]))))
        return found

    def test_agents_store_and_tcp_ranks_use_the_interface(self):
        self.trains_over_interface("tcp")

    def test_gloo_ranks_use_the_interface(self):
        self.trains_over_interface("gloo")

    def test_one_machine_uses_the_interface_too(self):
        name, _ = self.other_interface()
        self.assertEqual(self.train(self.text_job(ranks=2, steps=5), "--interface", name)["steps"], 5)


class Notices(EndToEnd):
    def serve(self):
        """A metadata service as EC2's: without a notice until `self.notice` is set."""
        test = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self, code, body=b""):
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_PUT(self):
                self.answer(200 if self.path == "/latest/api/token" else 404, b"the token")

            def do_GET(self):
                test.asked += 1
                if self.path.startswith("/latest/") and self.headers.get("X-aws-ec2-metadata-token") != "the token":
                    return self.answer(401)
                self.answer(200, b'{"action": "terminate"}') if test.notice else self.answer(404)

            def log_message(self, *arguments):
                pass

        self.asked, self.notice = 0, False
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return f"http://127.0.0.1:{server.server_port}"

    def ends_with_a_checkpoint(self, url, *arguments, environment=None):
        checkpoints = self.folder / "ck"
        job = self.text_job(ranks=2, steps=1000000,
                            checkpoint={"directory": str(checkpoints), "preempt_url": url})
        process = self.start("train", job, *arguments, environment=environment)
        self.addCleanup(process.kill)
        wait_for(lambda: self.recorded_steps() > 3 and self.asked > 1)  # 404 does not end it
        self.notice = True
        out, err = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 75, out + err)
        self.assertIn("this machine will be taken away", out + err)
        self.assertEqual(len(list(checkpoints.glob("step-*"))), 1)

    def test_a_notice_at_a_url_saves_and_asks_for_a_requeue(self):
        self.ends_with_a_checkpoint(self.serve() + "/notice")

    def test_a_notice_of_aws_saves_and_asks_for_a_requeue(self):
        self.ends_with_a_checkpoint("aws", environment={"AWS_EC2_METADATA_SERVICE_ENDPOINT": self.serve()})

    def test_a_notice_ends_ranks_in_one_process_too(self):
        self.ends_with_a_checkpoint(self.serve() + "/notice", "--backend", "local")

    def test_a_place_that_is_not_one_is_refused(self):
        job = self.text_job(ranks=1, steps=1, checkpoint={"preempt_url": "gce"})
        self.expect_error(2, ["preempt_url", "aws, gcp, azure"], "train", job)


if __name__ == "__main__":
    unittest.main()
