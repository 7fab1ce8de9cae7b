"""The same job, started in every way, gives the same losses."""
import socket
import subprocess

from harness import *


class Launchers(EndToEnd):
    def assert_close(self, a, b, relative):
        self.assertEqual(a.keys(), b.keys())
        worst = max(abs(a[step] - b[step]) / abs(b[step]) for step in b)
        self.assertLessEqual(worst, relative)
        print(f"worst relative difference over {len(b)} steps: {worst:.1e}")

    def test_threads_processes_and_mpi_agree(self):
        job = self.text_job(ranks=4)
        gloo = self.losses(self.train(job, "--backend", "gloo")["run"])
        local = self.losses(self.train(job, "--backend", "local")["run"])
        mpi = self.train(job, prefix=("mpirun", "--oversubscribe", "-np", "4"))
        self.assertEqual(mpi["backend"], "mpi")
        self.assert_close(self.losses(mpi["run"]), gloo, 1e-6)
        self.assert_close(local, gloo, 1e-6)

    def test_torchrun_style_variables_form_a_world(self):
        job = self.text_job(ranks=2)
        alone = self.losses(self.train(job)["run"])
        port = str(free_port())
        ranks = [self.start("train", job, "--json", environment={"RANK": str(rank), "WORLD_SIZE": "2",
                                                                 "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1",
                                                                 "MASTER_PORT": port}) for rank in range(2)]
        outputs = [rank.communicate(timeout=240) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], outputs)
        self.assertEqual(outputs[1][0], "")  # the first rank speaks for all
        run = json.loads(outputs[0][0].strip().splitlines()[-1])["run"]
        self.assertEqual(self.losses(run), alone)

    def test_a_run_of_two_nodes_is_reported_with_both_ranks(self):
        for shared in (True, False):
            homes = [self.folder / f"{shared}-0", self.folder / f"{shared}-{0 if shared else 1}"]
            node = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(free_port()), "LOCKSTEP_TOKEN": "x" * 32}
            ranks = [self.start("train", self.text_job(ranks=2, steps=12), "--json",
                                environment={**node, "RANK": str(rank), "LOCKSTEP_HOME": str(homes[rank])})
                     for rank in range(2)]
            outputs = [rank.communicate(timeout=240) for rank in ranks]
            self.assertEqual([rank.returncode for rank in ranks], [0, 0], outputs)
            done = self.run_lockstep("report", "last", "--json", environment={"LOCKSTEP_HOME": str(homes[0])})
            report = json.loads(done.stdout)
            self.assertEqual(report["run"]["status"], "done")
            self.assertEqual([rank["rank"] for rank in report["ranks"]], [0, 1], f"shared home: {shared}")
            self.assertTrue(all(rank["step_seconds"] > 0 for rank in report["ranks"]))
            self.assertEqual(report["missing_ranks"], [])

    def test_a_slurm_step_forms_a_world(self):
        step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(free_port())}
        ranks = [self.start("train", self.text_job(ranks=2), "--json",
                            environment={**step, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)})
                 for rank in range(2)]
        outputs = [rank.communicate(timeout=240) for rank in ranks]
        self.assertEqual([rank.returncode for rank in ranks], [0, 0], outputs)

    def test_a_world_of_another_size_is_refused(self):
        self.expect_error(2, ["torchrun started 3 ranks", "has 2", "cluster=1x3xcpu"], "train", self.text_job(ranks=2),
                          environment={"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})

    def test_a_port_in_use_is_named(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            self.expect_error(4, [port, "in use"], "train", self.text_job(ranks=2),
                              environment={"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                           "MASTER_PORT": port})

    def test_an_installed_tree_trains(self):
        prefix = self.folder / "prefix"
        subprocess.run(["cmake", "--install", str(BUILD), "--prefix", str(prefix)], check=True, capture_output=True,
                       timeout=120)
        done = subprocess.run([prefix / "bin" / "lockstep", "train", str(self.text_job(steps=3)), "--json"],
                              env=self.environment, cwd=self.folder, capture_output=True, text=True, timeout=240)
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
