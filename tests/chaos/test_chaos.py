"""Faults of many kinds on every kind of layout: the weights at the end are those of the undisturbed run, bit for bit, the
ledger is exact, nothing hangs and no process is left.

    test_chaos.py [Short]      a dozen faults
    test_chaos.py Long         200 of them; run.py takes other numbers and seeds
"""
import itertools
import sys

from arena import *

SEED, FAULTS_IN_ALL = 20261116, 200


class Short(Arena):
    STEPS = 40

    def expect_undisturbed(self, layout, events, backend=BACKENDS[0]):
        outcome = self.disturbed(layout, self.STEPS, events, backend)
        self.assertFalse(outcome.problems, str(outcome))
        self.assertEqual(outcome.left, [], str(outcome))
        return outcome

    def test_replicas(self):
        self.expect_undisturbed("dp", ["kill rank=0 step=6", "kill rank=1,3 step=12",
                                       "exit rank=2 step=17 in=collective at=3", "segfault rank=3 step=22",
                                       "kill rank=1 in=recovery", "sever rank=2 step=28",
                                       "stop rank=0 step=33 for=1s", "kill standby step=35"])

    def test_sharded(self):
        self.expect_undisturbed("zero3", ["abort rank=1 step=13", "kill rank=3 in=join", "full-disk rank=2 step=14",
                                          "kill rank=2 step=19 in=save at=4", "slow rank=0 step=30 x2 for=1s"], "tcp")

    def test_a_rank_that_is_lost_after_the_last_step(self):
        outcome = self.expect_undisturbed("dp", [f"kill rank=1 step={self.STEPS} in=save",
                                                 f"kill rank=2 step={self.STEPS} in=save at=3"])
        self.assertGreaterEqual(outcome.restarts, 1)

    def test_a_rank_that_does_not_come_to_the_meeting_costs_nobody_else(self):
        outcome = self.expect_undisturbed("dp", ["kill rank=0,1 step=10", "kill rank=3 in=join"])
        self.assertEqual(outcome.lost_steps, 0)

    def test_a_gradient_that_is_not_a_number_skips_its_step(self):
        job, _ = self.job("tp-pp", 12, "spoiled")
        result = self.train(job, "--chaos", "nan rank=3 step=9")
        self.assertEqual((result["skipped_steps"], result["steps"]), (1, 12))

    def test_a_bit_that_flips_in_one_replica_is_found_and_its_rank_named(self):
        job, _ = self.job("dp", 14, "flipped")
        result = self.train(job, "health.replica_check_every=3", "--chaos", "flip rank=1 step=7")
        events = json.loads(self.run_lockstep("report", result["run"], "--json").stdout)["events"]
        found = [event for event in events if event["kind"] == "replicas"]
        self.assertEqual([event["data"]["ranks"] for event in found], [[1]])
        self.assertIn("silent corruption: rank 1", found[0]["message"])
        self.assertLessEqual(found[0]["step"] - 7, 3)
        self.assertEqual((result["steps"], result["restarts"]), (14, 1))

    def test_a_bit_that_flips_unseen_changes_the_result(self):
        job, kept = self.job("dp", 12, "unseen")
        self.train(job, "health.replica_check_every=0", "--chaos", "flip rank=1 step=4")
        self.assertNotEqual(weights_of(kept), self.reference("dp", 12))

    def test_the_demo_shows_a_kill_that_changes_nothing(self):
        done = self.run_lockstep("demo", "--chaos", "--json", "steps=20")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        told = json.loads(done.stdout)
        self.assertTrue(told["identical"] and told["ledger_exact"], told)
        self.assertEqual((told["steps"], told["steps_identical"], len(told["recovery_seconds"])), (20, 20, 1))

    def test_what_is_not_chaos_is_refused_before_a_rank_starts(self):
        job, _ = self.job("dp", 12, "refused")
        self.expect_error(2, ["--chaos:1:6", "did you mean `rank`"], "train", job, "--chaos", "kill rnak=1")
        self.expect_error(2, ["local backend"], "train", job, "--backend", "local", "--chaos", "kill rank=1")


class Long(Arena):
    STEPS, A_RUN = 80, 10

    def test_random_faults_on_every_layout(self):
        rng, done, failed = random.Random(SEED), 0, []
        for turn in itertools.count():
            if done >= FAULTS_IN_ALL:
                break
            for layout in LAYOUTS:
                outcome = self.disturbed(layout, self.STEPS, schedule(rng, self.A_RUN, self.STEPS), BACKENDS[turn % 2])
                done += len(outcome.fired)
                print(f"{done} faults, {outcome.seconds:.0f} s: {outcome}", flush=True)
                if outcome.problems:
                    failed.append(str(outcome))
        self.assertFalse(failed, "\n".join(failed))


if __name__ == "__main__":
    unittest.main(argv=sys.argv if len(sys.argv) > 1 else [*sys.argv, "Short"])
