"""Agents of several nodes keep one run alive: whichever node is lost, the run goes on."""
import os
import pathlib
import socket

from harness import *


class Nodes(SeveralNodes):
    def test_nodes_train_as_one_machine_does(self):
        job = self.text_job(cluster="2x1xcpu", steps=20)
        whole = self.train(job)
        self.begin(job, 2)
        result = self.ends()
        self.assertEqual(result["final_loss"], whole["final_loss"])
        self.assertEqual((result["restarts"], result["world"]), (0, 2))

    def test_without_the_node_that_leads_the_run_goes_on_with_the_others(self):
        job = self.text_job(cluster="3x1xcpu", steps=300)  # six micro-batches per step: for 3 nodes, 2 and 1
        whole = self.train(job)
        self.begin(job, 3)
        self.assertEqual(self.world(1), [0, 1, 2])
        wait_for(lambda: self.recorded_steps() > 3)
        self.agents[0].kill()
        self.assertEqual(self.world(2), [1, 2])
        result = self.ends(lost=[0])
        self.assertEqual((result["restarts"], result["world"], result["lost_steps"]), (1, 2, 0))
        self.assert_same_losses(result["run"], whole["run"])

    def test_of_two_nodes_the_second_goes_on_when_the_agent_of_the_first_is_killed(self):
        job = self.text_job(cluster="2x1xcpu", steps=300)
        whole = self.train(job)
        self.begin(job, 2)
        self.world(1)
        wait_for(lambda: self.recorded_steps() > 3)
        self.agents[0].kill()
        self.assertEqual(self.world(2), [1])
        result = self.ends(lost=[0])
        self.assertEqual((result["restarts"], result["world"], result["lost_steps"]), (1, 1, 0))
        self.assert_same_losses(result["run"], whole["run"])

    def test_nodes_without_a_common_secret_do_not_meet_and_say_so(self):
        job = self.text_job(cluster="2x1xcpu", steps=20)
        self.begin(job, 1)
        self.addresses = f"{self.addresses},127.0.0.1:{free_port()}"
        self.kill(self.agents.pop(0))
        first = self.agent(job, 0)
        self.environment["LOCKSTEP_TOKEN"] = "another"
        second = self.agent(job, 1)
        _, said = second.communicate(timeout=300)
        self.assertEqual(second.returncode, 2, said)
        self.assertIn("another LOCKSTEP_TOKEN", said)
        self.kill(first)

    def test_a_spare_node_takes_the_place_of_a_lost_one(self):
        job = self.text_job(cluster="2x1xcpu", steps=300)
        whole = self.train(job)
        self.begin(job, 3)
        used = self.world(1)  # the first two that came
        self.assertEqual(used[0], 0)
        wait_for(lambda: self.recorded_steps() > 3)
        self.agents[used[1]].kill()
        self.assertEqual(self.world(2), [0, 3 - used[1]])
        result = self.ends(lost=[used[1]])
        self.assertEqual(result["final_loss"], whole["final_loss"])

    def test_what_a_node_loses_while_nobody_leads_is_known_to_the_next_leader(self):
        job = self.text_job(cluster="2x1xcpu", steps=300)
        whole = self.train(job)
        self.begin(job, 3)
        self.world(1)
        wait_for(lambda: self.recorded_steps() > 3)
        self.agents[1].send_signal(signal.SIGSTOP)  # its machine takes what node 2 says of its processes, and nobody reads it
        self.agents[0].kill()
        time.sleep(1.5)
        for pid in self.children(self.agents[2]):
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not self.children(self.agents[2]))
        self.agents[1].send_signal(signal.SIGCONT)
        self.assertEqual(set(self.world(2)), {1, 2})
        result = self.ends(lost=[0])
        self.assertEqual(result["final_loss"], whole["final_loss"])

    @staticmethod
    def children(process):
        """Of an agent: its ranks and those that wait, as long as they live."""
        found = []
        for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
            try:
                state, parent = stat.read_text().rsplit(")", 1)[1].split()[:2]
            except OSError:
                continue
            if int(parent) == process.pid and state != "Z":
                found.append(int(stat.parent.name))
        return found

    @timing  # on a busy machine about half of the runs count a restart
    def test_an_agent_that_does_not_run_for_a_while_is_not_lost(self):
        job = self.text_job(cluster="2x1xcpu", steps=300)
        self.begin(job, 2)
        self.world(1)
        wait_for(lambda: self.recorded_steps() > 3)
        for node in self.agents:
            self.agents[node].send_signal(signal.SIGSTOP)  # its machine still answers
            time.sleep(3)
            self.agents[node].send_signal(signal.SIGCONT)
        self.assertEqual(self.ends()["restarts"], 0)

    def test_the_run_grows_when_a_node_is_back(self):
        job = self.text_job(cluster="2x1xcpu", steps=1000000)
        self.begin(job, 2)
        self.world(1)
        wait_for(lambda: self.recorded_steps() > 3)
        self.agents[1].kill()
        self.agents[1].communicate()
        self.assertEqual(self.world(2), [0])
        before = self.recorded_steps()
        wait_for(lambda: self.recorded_steps() > before + 3)
        self.agents[1] = self.agent(job, 1)
        self.assertEqual(self.world(3), [0, 1])
        self.agents[1].send_signal(signal.SIGINT)  # any of them may be asked
        for process in self.agents.values():
            out, err = process.communicate(timeout=900)
            self.assertEqual(process.returncode, 130, out + err)

    def test_where_the_state_does_not_fit_on_fewer_nodes_the_run_waits_for_the_lost_one(self):
        # Weights and optimizer state are sharded: a rank needs 927 KiB on two nodes and 1134 KiB on one.
        cluster = {"groups": [{"kind": "cpu", "nodes": 2, "devices_per_node": 1, "device": {"memory": "1000KiB"}}]}
        job = self.text_job(cluster=cluster, layout={"shard": 2, "zero": 3}, steps=120)
        self.begin(job, 2)
        self.assertEqual(self.world(1), [0, 1])
        wait_for(lambda: self.recorded_steps() > 3)
        self.agents[1].kill()
        self.agents[1].communicate()
        told = next(line for line in self.agents[0].stderr if "waits up to" in line)
        self.assertIn("1 of 2 nodes", told)
        self.assertIn("per rank and cpu has", told)
        self.agents[1] = self.agent(job, 1)
        self.assertEqual(self.world(2), [0, 1])
        result = self.ends()
        self.assertEqual((result["restarts"], result["world"]), (1, 2))

    def test_a_node_with_another_job_is_refused(self):
        job = self.text_job(cluster="2x1xcpu", steps=5)
        self.begin(job, 1)
        self.kill(self.agents[0])
        self.addresses += f",127.0.0.1:{free_port()}"
        first = self.agent(job, 0)
        other = self.start("launch", job, "seed=9", "--nodes", self.addresses, "--node", 1)
        _, err = other.communicate(timeout=600)
        self.assertEqual(other.returncode, 2, err)
        self.assertIn("another job", err)
        self.kill(first)



@unittest.skipUnless(os.geteuid() == 0, "nodes with disks of their own need root")
class OtherDisks(SeveralNodes):
    def test_records_of_other_nodes_are_there_when_a_run_failed(self):
        job = self.text_job(cluster="2x1xcpu", steps=100000, recovery={"restarts": 0},
                            checkpoint={"directory": str(self.folder / "shared")})
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        name = socket.gethostname()  # not a loopback address, so the ranks take each other for other machines
        self.addresses = f"{name}:{free_port()},{name}:{free_port()}"
        self.environment["LOCKSTEP_TOKEN"] = "of this test"
        self.agents[0] = self.agent(job, 0)
        own_disk = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(home))
        self.agents[1] = self.start("launch", job, "--json", "--nodes", self.addresses, "--node", 1, prefix=own_disk)
        self.addCleanup(self.kill, self.agents[1])
        wait_for(lambda: self.recorded_steps() > 10 or self.agents[0].poll() is not None)
        for pid in Nodes.children(self.agents[0]):
            os.kill(pid, signal.SIGKILL)
        outputs = [self.agents[node].communicate(timeout=300) for node in (0, 1)]
        self.assertNotEqual(self.agents[0].returncode, 0, outputs)
        report = json.loads(self.run_lockstep("report", "last", "--json").stdout)
        self.assertEqual(report["run"]["status"], "failed")
        self.assertEqual([rank["rank"] for rank in report["ranks"]], [0, 1], outputs)
        self.assertGreater(report["ranks"][1]["steps"], 5)
        self.assertEqual(report["missing_ranks"], [])


if __name__ == "__main__":
    unittest.main()
