"""A network that is really cut: nodes are network namespaces of this machine. Needs root."""
import subprocess
import sys

from drills import *

sys.path[:0] = [str(SOURCE / "bench" / "recovery"), str(SOURCE / "tests" / "chaos")]
import namespaces  # noqa: E402
from arena import weights_of  # noqa: E402

WHY_NOT = namespaces.why_not()


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Partition(Drill):
    def setUp(self):
        super().setUp()
        self.nodes = namespaces.Nodes(3)
        self.addCleanup(self.nodes.down)
        self.nodes.up()
        self.agents = {}
        self.checkpoints = self.folder / "checkpoints"
        self.job = self.text_job(cluster="2x1xcpu", steps=2000,
                                 checkpoint={"directory": str(self.checkpoints), "every_steps": 50, "keep": 3})

    def undisturbed(self):
        result = self.train(self.job)
        weights = weights_of(self.checkpoints)
        self.checkpoints.rename(self.folder / "undisturbed")
        return result, weights

    def begin(self):
        environment = {**self.environment, "LOCKSTEP_TOKEN": "of this test"}
        for node in self.nodes.numbers():
            self.agents[node] = self.nodes.start_on(
                node, f"{LOCKSTEP} launch {self.job} --json --nodes n[1-3] > {self.folder}/{node}.json 2> {self.folder}/{node}.txt",
                env=environment, cwd=self.folder, stdin=subprocess.DEVNULL)

    def said_by(self, node, kind="txt"):
        return (self.folder / f"{node}.{kind}").read_text()

    def ranks_on(self, node):
        return self.nodes.pids(node, f"{LOCKSTEP} rank ")

    def writer(self):
        """The host that the checkpoint folder belongs to."""
        try:
            return json.loads((self.checkpoints / ".lease").read_text())["host"]
        except (OSError, ValueError):
            return ""

    def until(self, condition):
        try:
            wait_for(condition, timeout=50)
        except AssertionError:
            self.fail("".join(f"n{node} said\n{self.said_by(node)}" for node in self.nodes.numbers()))

    def test_the_smaller_side_of_a_cut_is_fenced_and_the_larger_side_loses_nothing(self):
        expected, weights = self.undisturbed()
        self.begin()
        self.until(lambda: self.writer() == "n1" and self.saved_steps(self.checkpoints))
        self.nodes.cut(1)  # leads, and has rank 0
        self.until(lambda: not self.ranks_on(1))
        self.until(lambda: self.writer() in ("n2", "n3"))
        newest = max(self.saved_steps(self.checkpoints))
        self.until(lambda: max(self.saved_steps(self.checkpoints)) > newest + 50)  # one of them began after the cut
        self.assertEqual(self.ranks_on(1), [])
        self.assertNotEqual(self.writer(), "n1")
        self.nodes.heal(1)
        self.until(lambda: "node n1 is back" in self.said_by(2))
        for node, agent in self.agents.items():
            self.assertEqual(agent.wait(timeout=900), 0, f"n{node}\n{self.said_by(node)}")
        self.assertIn("its ranks are ended", self.said_by(1))
        self.assertIn("node n1, which led the run, is lost: its machine does not answer", self.said_by(2))
        result = json.loads(self.said_by(2, "json").strip().splitlines()[-1])
        self.assertEqual((result["world"], result["final_loss"]), (2, expected["final_loss"]))
        self.assertEqual(weights_of(self.checkpoints), weights)


if __name__ == "__main__":
    unittest.main()
