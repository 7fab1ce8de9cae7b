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
        job = self.text_job(ranks=4, steps=60, layout={"shard": 4, "zero": 3}, checkpoint={"every_steps": 5},
                            recovery={"snapshots": {"every": 0}})
        whole = self.train(job)
        again, _ = self.disturbed(job, lambda _, ranks: os.kill(ranks[3], signal.SIGKILL))
        self.assertEqual(again["restarts"], 1)
        self.assertEqual(again["final_loss"], whole["final_loss"])

    def killed_in_training(self, job, killed):
        """What the run of `job` says at its end, when these ranks are killed after some steps."""
        process = self.start("train", job, "--json", "--report-steps")
        ranks = self.ranks_of(process)
        while json.loads(process.stdout.readline())["step"] < 5:
            pass
        for rank in killed:
            os.kill(ranks[rank], signal.SIGKILL)
        out, err = process.communicate(timeout=900)
        self.assertEqual(process.returncode, 0, out + err)
        return json.loads(out.strip().splitlines()[-1]), err

    def sharded_job(self, layout, every=1, moe=False, **fields):
        """No checkpoint is ever saved, unless `fields` say so."""
        model = {"arch": "gpt", "layers": 2, "hidden": 32, "heads": 2, "vocab": 256, "max_sequence": 32}
        if moe:
            model |= {"arch": "moe", "ffn_hidden": 64, "experts": 4, "experts_per_token": 2}
        fields = {"checkpoint": {"every_steps": 100000, "final": False}} | fields
        return self.text_job(ranks=4, steps=30, model=model, layout=layout,
                             recovery={"snapshots": {"every": every}}, **fields)

    def check_recovery_from_memory(self, layout, moe=False):
        job = self.sharded_job(layout, moe=moe)
        whole = self.train(job)
        again, err = self.killed_in_training(job, [2])
        self.assertEqual(again["restarts"], 1, err)
        self.assertIn("from the memory of the ranks", err)
        self.assertLessEqual(again["lost_steps"], 1, err)  # one when it died between its update and the end of its copy
        self.assertEqual(again["final_loss"], whole["final_loss"])

    def test_a_lost_shard_of_zero_1_comes_from_a_peer(self):
        self.check_recovery_from_memory({"shard": 4, "zero": 1})

    def test_a_lost_shard_of_zero_3_comes_from_a_peer(self):
        self.check_recovery_from_memory({"shard": 4, "zero": 3})

    def test_a_lost_stage_of_a_tensor_parallel_pipeline_comes_from_a_peer(self):
        self.check_recovery_from_memory({"tp": 2, "pp": 2})

    def test_a_lost_rank_of_context_and_data_parallel_comes_from_a_replica(self):
        self.check_recovery_from_memory({"cp": 2, "dp": 2})

    def test_a_lost_share_of_the_experts_comes_from_a_peer(self):
        self.check_recovery_from_memory({"dp": 4, "ep": 4}, moe=True)

    def test_without_snapshots_a_lost_shard_is_gone(self):
        again, err = self.killed_in_training(self.sharded_job({"shard": 4, "zero": 3}, every=0), [2])
        self.assertIn("goes on after step 0 from disk", err)
        self.assertGreater(again["lost_steps"], 1)

    def test_a_rank_lost_with_its_copy_comes_from_the_last_checkpoint(self):
        job = self.sharded_job({"shard": 4, "zero": 3}, checkpoint={"every_steps": 2})
        whole = self.train(job)
        again, err = self.killed_in_training(job, [1, 2])
        self.assertIn("from disk", err)
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
