"""Ranks that die, crash or hang do not end a run, and change nothing in it."""
import os

from harness import *


class Recovery(EndToEnd):
    def disturbed(self, job, disturb):
        """What the run of `job` says at its end, when disturb(ranks) was called after some steps."""
        process = self.start("train", job, "--json")
        ranks = self.ranks_of(process)
        wait_for(lambda: self.recorded_steps() > 3)
        disturb(process, ranks)
        out, err = process.communicate(timeout=900)
        self.assertEqual(process.returncode, 0, out + err)
        for pid in ranks.values():
            self.assertFalse(self.is_child(pid, process.pid))
        return json.loads(out.strip().splitlines()[-1]), err

    def test_a_killed_rank_is_replaced_and_the_losses_are_the_same(self):
        job = self.text_job(ranks=4, steps=60)
        whole = self.train(job)
        again, err = self.disturbed(job, lambda _, ranks: os.kill(ranks[2], signal.SIGKILL))
        self.assertEqual(again["restarts"], 1)
        self.assertEqual(len(again["recovery_seconds"]), 1)
        self.assertEqual(again["final_loss"], whole["final_loss"])
        self.assertIn("rank 2 was killed", err)

    def test_two_ranks_killed_one_after_the_other(self):
        job = self.text_job(ranks=3, steps=60)
        whole = self.train(job)

        def kill(process, ranks):
            os.kill(ranks[0], signal.SIGKILL)
            os.kill(self.ranks_of(process, 2)[1], signal.SIGKILL)

        again, _ = self.disturbed(job, kill)
        self.assertGreaterEqual(again["restarts"], 1)
        self.assertEqual(again["final_loss"], whole["final_loss"])

    def test_under_a_sharded_layout_it_goes_on_from_the_last_checkpoint(self):
        job = self.text_job(ranks=4, steps=60, layout={"shard": 4, "zero": 3}, checkpoint={"every_steps": 5})
        whole = self.train(job)
        again, _ = self.disturbed(job, lambda _, ranks: os.kill(ranks[3], signal.SIGKILL))
        self.assertEqual(again["restarts"], 1)
        self.assertEqual(again["final_loss"], whole["final_loss"])

    def test_no_restarts_are_made_when_the_job_wants_none(self):
        job = self.text_job(ranks=2, steps=100000, recovery={"restarts": 0})
        process = self.start("train", job)
        ranks = self.ranks_of(process)
        wait_for(lambda: self.recorded_steps() > 3)
        os.kill(ranks[1], signal.SIGKILL)
        _, err = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 1)
        self.assertIn("rank 1 was killed", err)


if __name__ == "__main__":
    unittest.main()
