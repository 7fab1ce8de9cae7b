"""`--on slurm` on a real Slurm cluster of four nodes on this machine: submit, follow, cancel, a lost node, a study.
Needs root and Debian's Slurm packages; bench/launch/slurm.py does more of it and measures."""
import pathlib
import sys
import tempfile
import unittest

from harness import LOCKSTEP, SOURCE

sys.path[:0] = [str(SOURCE / "bench" / "launch"), str(SOURCE / "bench" / "recovery")]
import namespaces  # noqa: E402
import slurm  # noqa: E402
import slurm_cluster  # noqa: E402

MISSING = namespaces.missing_programs(slurm_cluster.PROGRAMS)
WHY_NOT = namespaces.why_not() or (f"not installed: {', '.join(MISSING)}" if MISSING else "")


@unittest.skipIf(WHY_NOT, WHY_NOT)
class LaunchOnSlurm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="lockstep-e2e-", ignore_cleanup_errors=True))
        cluster = cls.enterClassContext(slurm_cluster.SlurmCluster(4, prefix="lsm", network="10.84.0", port=17837))
        cls.launches = slurm.Launches(cluster, LOCKSTEP, pathlib.Path(folder))

    def tearDown(self):
        self.launches.cluster.run("scancel", "--user=root")

    def drill(self, name):
        print(slurm.shown(getattr(self.launches, name)()))

    def test_a_submitted_run_gives_the_losses_and_weights_of_this_machine(self):
        self.drill("done")

    def test_a_cancelled_run_saves_and_goes_on_when_it_is_submitted_again(self):
        self.drill("cancel")

    def test_a_run_that_waits_for_nodes_is_cancelled(self):
        self.drill("waiting")

    def test_a_spare_node_takes_the_place_of_a_lost_one(self):
        self.drill("spare")

    def test_a_run_outlives_the_node_of_its_batch_script(self):
        self.drill("batch_host")

    def test_a_study_goes_on_when_a_node_is_lost(self):
        self.drill("tune")


if __name__ == "__main__":
    unittest.main(verbosity=2)
