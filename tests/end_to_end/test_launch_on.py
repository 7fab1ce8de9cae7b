"""`lockstep launch --on ssh|mpi` for real: a local sshd, mpirun, and the record in the submitter's store."""
import json
import os
import pathlib
import pwd
import shutil
import signal
import subprocess
import time
import unittest

import harness

SSHD = shutil.which("sshd") or ("/usr/sbin/sshd" if os.path.exists("/usr/sbin/sshd") else None)


class LaunchOn(harness.EndToEnd):
    def job(self, cluster="2x1xcpu", steps=30, **launch):
        path = self.folder / "job.yaml"
        path.write_text(json.dumps({
            "model": {"arch": "gpt", "layers": 2, "hidden": 32, "heads": 2, "vocab": 256, "max_sequence": 32},
            "cluster": cluster,
            "data": {"kind": "text", "path": "/usr/share/common-licenses", "tokenizer": "bytes"},
            "batch": {"micro": 2, "sequence_length": 32},
            "optimizer": {"kind": "adamw", "learning_rate": 1e-3},
            "threads_per_rank": 1,
            "steps": steps,
            "launch": {"environment": {"LOCKSTEP_HOME": self.environment["LOCKSTEP_HOME"]}, **launch},
        }))
        return path

    def local_losses(self, job):
        home = str(self.folder / "local-home")
        done = self.run_lockstep("train", job, "--json", environment={"LOCKSTEP_HOME": home})
        self.assertEqual(done.returncode, 0, done.stderr)
        shown = self.run_lockstep("report", "last", "--json", environment={"LOCKSTEP_HOME": home})
        return {int(step): value for step, value, *_ in json.loads(shown.stdout)["loss"]}

    def recorded_status(self):
        return json.loads(self.run_lockstep("report", "last", "--json").stdout)["run"]["status"]

    def launch(self, *arguments, expect=0):
        done = self.run_lockstep("launch", *arguments, "--json")
        self.assertEqual(done.returncode, expect, done.stdout[-2000:] + done.stderr[-4000:])
        return json.loads(done.stdout.strip().splitlines()[-1])


@unittest.skipUnless(SSHD, "needs sshd: apt-get install openssh-server")
class Ssh(LaunchOn):
    def setUp(self):
        super().setUp()
        keys = self.folder / "keys"
        keys.mkdir(mode=0o700)
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(keys / name)], check=True)
        shutil.copy(keys / "user.pub", keys / "authorized")
        self.port = harness.free_port()
        (keys / "config").write_text(
            f"Port {self.port}\nListenAddress 127.0.0.1\nHostKey {keys}/host\nAuthorizedKeysFile {keys}/authorized\n"
            f"PidFile {keys}/pid\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n")
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", exist_ok=True)
        self.server = subprocess.Popen([SSHD, "-D", "-e", "-f", str(keys / "config")], stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.stop_server)
        self.ssh = {"port": self.port, "identity": str(keys / "user"), "user": pwd.getpwuid(os.geteuid()).pw_name,
                    "options": ["-oStrictHostKeyChecking=no", "-oUserKnownHostsFile=/dev/null", "-oLogLevel=ERROR"]}
        self.hosts = self.folder / "hosts"
        self.hosts.write_text("127.0.0.1\n127.0.0.1\n")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if subprocess.run(["ssh", "-p", str(self.port), "-i", self.ssh["identity"], *self.ssh["options"],
                               "-oBatchMode=yes", "127.0.0.1", "true"], capture_output=True).returncode == 0:
                return
            if self.server.poll() is not None:
                self.skipTest("sshd does not start here: " + self.server.stderr.read())
            time.sleep(0.2)
        self.fail("sshd does not answer")

    def stop_server(self):
        self.server.terminate()
        self.server.wait()
        self.server.stderr.close()

    def ranks(self):
        """Processes of the job, by the home in their command lines."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(self.folder).encode() in entry.read_bytes() and b"\0rank\0" in entry.read_bytes():
                    found.append(int(entry.parent.name))
            except OSError:
                pass
        return found

    def wait_for(self, condition, what, seconds=120):
        deadline = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.1)

    def test_two_nodes_give_the_losses_of_a_local_run_in_one_record(self):
        job = self.job(ssh=self.ssh)
        result = self.launch("--on", "ssh", "--hostfile", self.hosts, job)
        self.assertEqual(result["status"], "done")
        self.assertEqual(result["submission"]["on"], "ssh")
        self.assertEqual(self.losses(result["run"]), self.local_losses(job))
        self.assertEqual(len(list((pathlib.Path(self.environment["LOCKSTEP_HOME"]) / "runs").iterdir())), 1)

    def test_a_job_that_was_stopped_goes_on_under_the_same_command(self):
        job = self.job(ssh=self.ssh, steps=4000)
        process = self.start("launch", "--on", "ssh", "--hostfile", self.hosts, job, "--json")
        self.wait_for(lambda: self.recorded_steps() > 3, "no steps")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
        self.assertEqual(process.returncode, 130, err[-3000:])
        stopped = json.loads(out.strip().splitlines()[-1])
        self.assertEqual(stopped["status"], "interrupted", err[-3000:])
        again = self.launch("--on", "ssh", "--hostfile", self.hosts, job, f"steps={stopped['steps'] + 5}")
        self.assertEqual(again["steps"], stopped["steps"] + 5)

    def test_when_the_submitter_is_killed_the_nodes_save_and_end(self):
        job = self.job(ssh=self.ssh, steps=100000)
        process = self.start("launch", "--on", "ssh", "--hostfile", self.hosts, job, "--json")
        self.wait_for(lambda: self.recorded_steps() > 3, "no steps")
        process.kill()
        process.communicate()
        self.wait_for(lambda: not self.ranks(), "ranks outlived their submitter")
        self.assertEqual(self.recorded_status(), "interrupted")

    def test_hostile_names_and_values_reach_the_nodes_as_they_are(self):
        owned = self.folder / "owned"
        value = f"$(touch {owned}) `touch {owned}` '; touch {owned}; \" --flag &a *a"
        job = self.job(ssh=self.ssh, steps=2)
        tree = json.loads(job.read_text())
        tree["name"] = value
        tree["launch"]["environment"]["HOSTILE"] = value
        job.write_text(json.dumps(tree))
        result = self.launch("--on", "ssh", "--hostfile", self.hosts, job)
        self.assertEqual(result["status"], "done")
        self.assertFalse(owned.exists())

    def test_doctor_looks_at_every_node_and_link(self):
        job = self.job(ssh=self.ssh)
        done = self.run_lockstep("doctor", job, "--hostfile", self.hosts, "--json")
        report = json.loads(done.stdout.strip().splitlines()[-1])
        self.assertEqual([node["node"] for node in report["nodes"]], [0, 1])
        for node in report["nodes"]:
            self.assertGreater(node["link"]["bytes_per_second"], 0)

    def test_doctor_says_so_when_nobody_answers_and_takes_settings_without_a_job(self):
        settings = [f"launch.ssh.port={harness.free_port()}", f"launch.ssh.identity={self.ssh['identity']}",
                    f"launch.ssh.options={json.dumps(self.ssh['options'])}"]
        done = self.run_lockstep("doctor", *settings, "--hostfile", self.hosts)
        self.assertEqual(done.returncode, 4, done.stdout + done.stderr)
        self.assertIn("no answer from the first node", done.stderr)

    def test_the_home_of_the_submitter_is_handed_on(self):
        job = self.job(ssh=self.ssh, steps=3)
        tree = json.loads(job.read_text())
        del tree["launch"]["environment"]
        job.write_text(json.dumps(tree))
        result = self.launch("--on", "ssh", "--hostfile", self.hosts, job)
        self.assertEqual(len(self.losses(result["run"])), 3)

    def test_a_machine_that_cannot_be_reached_is_said(self):
        job = self.job(ssh={**self.ssh, "port": harness.free_port()}, steps=2)
        done = self.run_lockstep("launch", "--on", "ssh", "--hostfile", self.hosts, job)
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("onnection refused", done.stdout + done.stderr)
        self.assertEqual(self.recorded_status(), "failed")


@unittest.skipUnless(shutil.which("mpirun"), "needs mpirun")
class Mpi(LaunchOn):
    def test_ranks_of_mpirun_are_recorded_as_the_submitted_run(self):
        job = self.job(cluster="1x2xcpu")
        result = self.launch("--on", "mpi", job)
        self.assertEqual(result["status"], "done")
        self.assertEqual(len(list((pathlib.Path(self.environment["LOCKSTEP_HOME"]) / "runs").iterdir())), 1)
        self.assertEqual(self.recorded_status(), "done")

    def test_a_hostfile_names_the_machines(self):
        hosts = self.folder / "hosts"
        for text, cluster in (("localhost slots=2\n", "1x2xcpu"), ("localhost\nlocalhost\n", "2x1xcpu")):
            hosts.write_text(text)
            self.assertEqual(self.launch("--on", "mpi", "--hostfile", hosts, self.job(cluster=cluster))["status"], "done")

    def test_a_failed_run_has_its_exit_code_and_record(self):
        job = self.job(cluster="1x2xcpu")
        done = self.run_lockstep("launch", "--on", "mpi", job, "data.path=/nowhere")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(self.recorded_status(), "failed")


class Words(LaunchOn):
    def test_a_dry_run_shows_the_submission_and_leaves_nothing(self):
        hosts = self.folder / "hosts"
        hosts.write_text("n1\nn2\n")
        done = self.run_lockstep("launch", "--on", "ssh", "--hostfile", hosts, "--dry-run", self.job())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("$ ssh", done.stdout)
        self.assertFalse((pathlib.Path(self.environment["LOCKSTEP_HOME"]) / "runs").exists())

    def test_a_job_that_cannot_run_is_refused_before_it_is_submitted(self):
        hosts = self.folder / "hosts"
        hosts.write_text("n1\nn2\n")
        self.expect_error(2, ["layout"], "launch", "--on", "ssh", "--hostfile", hosts, self.job(), "layout.tp=3")

    def test_what_is_missing_or_does_not_belong_is_said(self):
        job = self.job()
        self.expect_error(2, ["2 nodes and 0 machines"], "launch", "--on", "ssh", job)
        hosts = self.folder / "hosts"
        hosts.write_text("n1\n")
        self.expect_error(2, ["--on ssh or --on mpi"], "launch", "--hostfile", hosts, job)
        self.expect_error(2, ["cluster: auto"], "launch", "--on", "ssh", "--hostfile", hosts, job, "cluster=auto")
        for path in ("corpus", "../corpus"):
            tree = json.loads(job.read_text())
            tree["data"]["path"] = path
            relative = self.folder / "relative.yaml"
            relative.write_text(json.dumps(tree))
            self.expect_error(2, ["is relative (it ends in `corpus`)"], "launch", "--on", "kubernetes", relative,
                              "launch.image=x")
        self.expect_error(2, ["was not submitted from here"], "launch", "--attach", "nothing")
        self.expect_error(2, ["unknown key `sssh`"], "launch", job, "launch.sssh.port=1")
        self.expect_error(2, ["neither a job nor a command"], "launch")

    def test_two_nodes_on_one_machine_are_said_plainly(self):
        done = self.run_lockstep("train", self.job(steps=1))
        self.assertIn("all 2 nodes of 2x1xcpu run on this machine", done.stderr)


if __name__ == "__main__":
    unittest.main()
