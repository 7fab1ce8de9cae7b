"""`lockstep launch` for programs that know nothing of us: plain Python scripts that meet over sockets, as torch does."""
from harness import *

import os
import pathlib
import sys
import textwrap

# Ranks meet at MASTER_ADDR:MASTER_PORT, where rank 0 listens; all count to --steps together and go on from a file.
SCRIPT = """
import argparse, json, os, pathlib, signal, socket, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--fail", default="")
parser.add_argument("--record", action="store_true")
arguments = parser.parse_args()
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if arguments.record:
    sys.path.insert(0, os.environ["TRAIN_MODULES"])
    import lockstep
print(f"rank {rank} of {world}, restart {restart}, {sys.argv[1:]}", flush=True)
peers = []
if rank == 0:
    server = socket.create_server(place)
    for _ in range(world - 1):
        peers.append(server.accept()[0])
else:
    while True:
        try:
            peers.append(socket.create_connection(place, 60))
            break
        except OSError:
            time.sleep(0.02)
def together():
    if rank == 0:
        for peer in peers:
            if not peer.recv(1): sys.exit("a peer is lost")
        for peer in peers: peer.sendall(b"x")
    else:
        peers[0].sendall(b"x")
        if not peers[0].recv(1): sys.exit("rank 0 is lost")
done = arguments.folder / "done"
(arguments.folder / f"pid-{rank}").write_text(str(os.getpid()))
begin = int(done.read_text()) if done.exists() else 0
for step in range(begin + 1, arguments.steps + 1):
    together()
    time.sleep(0.05)
    if arguments.fail == f"{rank}@{step}" and restart == 0: raise ValueError("out of luck")
    if arguments.record: lockstep.log(step, loss=1 / step, tokens=100)
    if rank == 0:
        with open(arguments.folder / "steps", "a") as file: file.write(f"{step} {world} {restart}\\n")
        part = done.with_suffix(".part"); part.write_text(str(step)); part.replace(done)
together()
"""


class LaunchCommand(EndToEnd):
    def setUp(self):
        super().setUp()
        self.script = self.folder / "train.py"
        self.script.write_text(textwrap.dedent(SCRIPT))
        self.environment["TRAIN_MODULES"] = str(SOURCE / "python" / "src")
        for name in [name for name in self.environment if name.startswith("PET_")]:
            del self.environment[name]

    def launch(self, *arguments, expect=0, **options):
        done = self.run_lockstep("launch", *arguments, **options)
        self.assertEqual(done.returncode, expect, done.stdout[-3000:] + done.stderr[-3000:])
        return done

    def steps(self):
        try:
            return [tuple(map(int, line.split())) for line in (self.folder / "steps").read_text().splitlines()]
        except OSError:
            return []

    def summary(self, done):
        return json.loads(done.stdout.strip().splitlines()[-1])

    def alive(self, rank):
        try:
            pid = int((self.folder / f"pid-{rank}").read_text())
            return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False


class OneMachine(LaunchCommand):
    def test_torchruns_form_runs_a_script_and_its_flags_are_its_own(self):
        done = self.launch("--nproc_per_node", 3, "train.py", self.folder, "--steps", 3)
        self.assertEqual([step for step, _, _ in self.steps()], [1, 2, 3])
        self.assertIn("[rank 2] rank 2 of 3, restart 0, ", done.stdout)
        self.assertIn("'--steps', '3'", done.stdout)

    def test_a_killed_rank_costs_one_generation_and_the_report_names_it(self):
        process = self.start("launch", "--nproc", 4, "--json", "--", sys.executable, "train.py", ".", "--record")
        wait_for(lambda: len(self.steps()) >= 4)
        os.kill(int((self.folder / "pid-2").read_text()), signal.SIGKILL)
        out, err = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 0, out + err)
        self.assertEqual(json.loads(out.splitlines()[-1])["restarts"], 1)
        self.assertEqual({step for step, _, _ in self.steps()}, set(range(1, 21)))
        self.assertIn("lockstep: rank 2 was killed", err)
        report = self.run_lockstep("report", "last").stdout
        self.assertIn("rank 2 was killed", report)
        self.assertIn("generation 2 begins with 4 ranks", report)
        self.assertIn("tokens/s", report)
        recorded = set(self.losses("last"))  # what was told at the moment of the end may be missing
        self.assertLessEqual(recorded, set(range(1, 21)))
        self.assertGreaterEqual(len(recorded), 18)

    def test_when_nothing_helps_one_root_cause_is_shown_and_its_exit_code_is_ours(self):
        (self.folder / "train.py").write_text("import os, sys, time\n"
                                              "if os.environ['RANK'] == '1': sys.exit('no luck at all')\ntime.sleep(600)\n")
        done = self.launch("--nproc", 2, "--max-restarts", 1, "--json", "train.py", expect=1)
        summary = self.summary(done)
        self.assertEqual((summary["status"], summary["restarts"], summary["rank"]), ("failed", 1, 1))
        self.assertIn("no luck at all (exit code 1); restarted 1 time already", summary["error"])
        self.assertIn("  | no luck at all", done.stderr)
        self.assertIn("failed", self.run_lockstep("report", "last").stdout)

    def test_a_signal_is_passed_on_and_no_process_is_left(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            (self.folder / "steps").unlink(missing_ok=True)
            (self.folder / "done").unlink(missing_ok=True)
            process = self.start("launch", "--nproc", 2, "--", "bash", "-c", f"{sys.executable} train.py . --steps 100000")
            wait_for(lambda: len(self.steps()) >= 2)
            process.send_signal(number)
            out, err = process.communicate(timeout=600)
            self.assertEqual(process.returncode, 130, out + err)
            wait_for(lambda: not self.alive(0) and not self.alive(1))
        self.assertIn("interrupted", self.run_lockstep("report", "last").stdout)

    def test_a_usr1_ends_it_to_be_started_again(self):
        process = self.start("launch", "--nproc", 2, "--json", "train.py", ".", "--steps", 100000)
        wait_for(lambda: len(self.steps()) >= 2)
        process.send_signal(signal.SIGUSR1)
        out, err = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 75, out + err)

    def test_logs_have_all_and_the_terminal_what_was_asked_for(self):
        done = self.launch("--nproc", 2, "-r", "0:3", "--log-dir", self.folder / "logs", "--duplicate-stdout-filters", "rank 1",
                           "train.py", ".", "--steps", 2)
        self.assertNotIn("[rank 0]", done.stdout)
        self.assertIn("[rank 1]", done.stdout)
        (logs,) = (self.folder / "logs").iterdir()
        self.assertIn("rank 0 of 2", (logs / "rank-00000.log").read_text())
        self.assertIn("--- generation 1: rank 0", (logs / "rank-00000.log").read_text())
        self.assertIn("[rank 1] rank 1 of 2", (logs / "filtered-stdout.log").read_text())

    def test_modules_and_programs_run_as_under_torchrun(self):
        done = self.launch("--nproc", 1, "-m", "platform")
        self.assertIn("Linux", done.stdout)
        done = self.launch("--no-python", "/bin/echo", "--nproc", "9")
        self.assertIn("[rank 0] --nproc 9", done.stdout)

    def test_what_cannot_be_done_is_refused_before_anything_starts(self):
        self.expect_error(2, ["no etcd"], "launch", "--rdzv-backend", "etcd", "train.py")
        self.expect_error(2, ["--logs-specs"], "launch", "--logs-specs", "x", "train.py")
        self.expect_error(2, ["neither a job nor a command"], "launch")
        self.expect_error(2, ["`--`"], "launch", "--nproc", 2, "train")
        self.expect_error(2, ["--chaos is for jobs"], "launch", "--chaos", "kill rank=0", "train.py")
        self.expect_error(2, ["2 nodes are asked for"], "launch", "--nnodes", 2, "train.py")
        self.expect_error(4, ["was not found"], "launch", "--no-record", "--", "no-such-program")
        self.expect_error(2, ["--tee is for commands"], "launch", self.text_job(), "--tee", 3)

    def test_without_a_record_nothing_is_recorded(self):
        self.launch("--nproc", 1, "--no-record", "train.py", ".", "--steps", 2, "--record")
        self.assertFalse((self.folder / "home" / "runs.db").exists())
        self.assertEqual(list((self.folder / "home").glob("runs/*/*.jsonl")), [])

    def test_words_that_look_like_commands_stay_words(self):
        hostile = ["$(touch hacked)", "a;touch hacked", "--json", "x\ny", "'\"`touch hacked`"]
        (self.folder / "train.py").write_text("import json, sys\nprint(json.dumps(sys.argv[1:]))\n")
        done = self.launch("--name", "x/../$(touch hacked)", "train.py", *hostile)
        self.assertEqual(json.loads(done.stdout.split("[rank 0] ", 1)[1].splitlines()[0]), hostile)
        self.assertFalse((self.folder / "hacked").exists())


class OneEndpoint(LaunchCommand):
    """Nodes are agents on this machine that only know one endpoint."""

    def setUp(self):
        super().setUp()
        self.environment.pop("LOCKSTEP_TOKEN", None)
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.nodes = []

    def node(self, *arguments, nnodes=2):
        process = self.start("launch", "--nproc", 2, "--nnodes", nnodes, "--rdzv-endpoint", self.endpoint, "--rdzv-conf",
                             "last_call_timeout=1", "--json", *arguments)
        self.addCleanup(self.end, process)
        self.nodes.append(process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def finish(self, process, expect=0):
        out, err = process.communicate(timeout=600)
        self.assertEqual(process.returncode, expect, out + err)
        return out, err

    def test_the_same_command_on_each_node_makes_one_run_with_a_secret_of_its_own(self):
        for _ in range(2):
            self.node("train.py", ".", "--steps", 5)
        for process in self.nodes:
            self.finish(process)
        self.assertEqual([(step, world) for step, world, _ in self.steps()], [(step, 4) for step in range(1, 6)])
        self.assertEqual((self.folder / "home" / "token").stat().st_mode & 0o777, 0o600)

    def test_the_run_goes_on_with_fewer_nodes_and_with_more_when_they_come(self):
        first = self.node("train.py", ".", "--steps", 150, nnodes="1:2")
        second = self.node("train.py", ".", "--steps", 150, nnodes="1:2")
        wait_for(lambda: len(self.steps()) >= 2)
        host, guest = (first, second) if self.is_host(first) else (second, first)
        if self.steps()[-1][1] == 2:  # the second came after the last call: it joins later
            wait_for(lambda: self.steps()[-1][1] == 4)
        guest.kill()
        wait_for(lambda: self.steps()[-1][1] == 2)
        third = self.node("train.py", ".", "--steps", 150, nnodes="1:2")
        wait_for(lambda: self.steps()[-1][1] == 4)
        out, _ = self.finish(host)
        self.finish(third)
        self.assertGreaterEqual(json.loads(out.splitlines()[-1])["restarts"], 1)
        self.assertEqual({step for step, _, _ in self.steps()}, set(range(1, 151)))

    def test_a_lost_node_of_a_fixed_number_comes_back(self):
        for _ in range(2):
            self.node("train.py", ".", "--steps", 60)
        wait_for(lambda: len(self.steps()) >= 3)
        host, guest = self.nodes if self.is_host(self.nodes[0]) else reversed(self.nodes)
        guest.kill()
        again = self.node("train.py", ".", "--steps", 60)
        self.finish(again)
        self.finish(host)
        self.assertEqual({step for step, _, _ in self.steps()}, set(range(1, 61)))

    def test_a_lost_node_of_a_job_comes_back_to_the_endpoint(self):
        job = self.text_job(cluster="2x1xcpu", steps=3000)
        words = ["launch", job, "--json", "--nnodes", 2, "--rdzv-endpoint", self.endpoint, "recovery.wait=600s"]
        agents = [self.start(*words) for _ in range(2)]
        wait_for(lambda: self.recorded_steps() >= 3)
        host, guest = agents if self.is_host(agents[0]) else reversed(agents)
        guest.kill()
        agents.append(self.start(*words))
        for process in agents:
            self.addCleanup(self.end, process)
        before = self.recorded_steps()
        wait_for(lambda: self.recorded_steps() > before + 20)
        self.assertIsNone(agents[-1].poll())
        host.send_signal(signal.SIGINT)
        self.finish(host, expect=130)

    def test_a_node_that_waits_for_others_says_so_and_is_interrupted(self):
        job = self.text_job(cluster="2x1xcpu", steps=10)
        nodes = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
        process = self.start("launch", job, "--nodes", nodes, "--node", 0)
        self.addCleanup(self.end, process)
        lines = []
        while "waiting for other nodes: 1 of 2" not in "".join(lines):
            line = process.stdout.readline()
            self.assertTrue(line, lines)
            lines.append(line)
        process.send_signal(signal.SIGINT)
        self.finish(process, expect=130)

    def test_a_script_that_is_not_there_is_refused_at_once(self):
        self.expect_error(4, ["there is no script nothere.py"], "launch", "--nproc", 2, "nothere.py")

    def is_host(self, process):
        port = f"{int(self.endpoint.split(':')[1]):04X}"
        sockets = {line.split()[9] for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]
                   if line.split()[1].endswith(":" + port) and line.split()[3] == "0A"}
        links = {os.readlink(fd) for fd in pathlib.Path(f"/proc/{process.pid}/fd").iterdir()}
        return any(f"socket:[{inode}]" in links for inode in sockets)

    def test_a_job_meets_at_an_endpoint_too(self):
        job = self.text_job(cluster="2x1xcpu", steps=10)
        agents = [self.start("launch", job, "--json", "--nnodes", 2, "--rdzv-endpoint", self.endpoint) for _ in range(2)]
        for process in agents:
            self.addCleanup(self.end, process)
        ends = [self.finish(process) for process in agents]
        result = next(json.loads(out.splitlines()[-1]) for out, _ in ends if out.strip())
        self.assertEqual(result["world"], 2)

    def test_nodes_with_other_secrets_are_told_what_to_do(self):
        self.node("train.py", ".")
        wait_for(lambda: self.is_host(self.nodes[0]))
        self.environment["LOCKSTEP_TOKEN"] = "another"
        _, err = self.finish(self.node("train.py", "."), expect=2)
        self.assertIn("copy the file `token`", err)

    def test_when_the_node_that_leads_is_lost_the_others_go_on(self):
        nodes = ",".join(f"127.0.0.1:{free_port()}" for _ in range(3))
        for number in range(3):
            self.nodes.append(self.start("launch", "--nproc", 1, "--nodes", nodes, "--node", number, "--nnodes", "2:3", "--json",
                                         "train.py", ".", "--steps", 60))
            self.addCleanup(self.end, self.nodes[-1])
        wait_for(lambda: len(self.steps()) >= 3)
        self.nodes[0].kill()
        ends = [self.finish(process) for process in self.nodes[1:]]
        self.assertIn("node 127.0.0.1", "".join(err for _, err in ends))
        self.assertEqual(self.steps()[-1][:2], (60, 2))
        summaries = [json.loads(out.splitlines()[-1]) for out, _ in ends if out.strip()]
        self.assertEqual([one["status"] for one in summaries], ["done"])

    def test_a_list_of_nodes_serves_commands_as_it_does_jobs(self):
        nodes = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
        for number in range(2):
            self.nodes.append(self.start("launch", "--nproc", 1, "--nodes", nodes, "--node", number, "--json", "train.py", ".",
                                         "--steps", 3))
        for process in self.nodes:
            self.addCleanup(self.end, process)
        for process in self.nodes:
            self.finish(process)
        self.assertEqual({world for _, world, _ in self.steps()}, {2})


if __name__ == "__main__":
    unittest.main()
