"""Agent and ranks killed at random moments, again and again: every start goes on, and the result is the undisturbed run's."""
import shutil
import subprocess

from drills import *


class EverythingKilled(Drill):
    def setUp(self):
        super().setUp()
        self.checkpoints = self.folder / "ck"
        # Without a schedule the goal does not change a step, so that it can be set when the last kill is over.
        self.job = self.text_job(ranks=3, steps=1000000, optimizer={"kind": "adamw", "learning_rate": 2e-3, "clip_norm": 1.0},
                                 checkpoint={"directory": str(self.checkpoints), "every_steps": 2, "keep": 2})

    def descendants(self, pid):
        """Processes below `pid`, at whatever depth, by the kernel's word."""
        found, waiting = [], [pid]
        while waiting:
            parent = waiting.pop()
            try:
                below = [int(child) for task in pathlib.Path(f"/proc/{parent}/task").iterdir()
                         for child in (task / "children").read_text().split()]
            except OSError:
                continue
            found += below
            waiting += below
        return found

    def newest(self):
        return max(self.saved_steps(self.checkpoints), default=0)

    def wait_for_a_moment(self, process, kind, rng):
        """At the start, after some steps, or while a checkpoint is being written."""
        ended = lambda: process.poll() is not None  # noqa: E731
        if kind == "start":
            time.sleep(rng.uniform(0.0, 1.5))
        elif kind == "steps":
            goal = self.newest() + rng.randrange(1, 12)
            wait_for(lambda: self.newest() >= goal or ended(), interval=0.01)
        else:
            begun = lambda: any(path.name.startswith(".tmp-step-") for path in self.checkpoints.glob(".*"))  # noqa: E731
            wait_for(lambda: begun() or ended(), interval=0.001)
            time.sleep(rng.uniform(0.0, 0.02))

    def kill_everything(self, process, rng):
        """With the agent first or last."""
        pids = self.descendants(process.pid)
        pids.insert(rng.choice((0, len(pids))), process.pid)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        out, err = process.communicate(timeout=120)
        wait_for(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids))
        return out + err

    def killed(self, times, seed):
        rng = random.Random(seed)
        moments = (["save", "steps", "start"] * times)[:times]
        rng.shuffle(moments)
        for number, kind in enumerate(moments):
            before = self.newest()
            process = self.start("train", self.job, "--resume", "auto")
            self.wait_for_a_moment(process, kind, rng)
            alive = process.poll() is None
            said = self.kill_everything(process, rng)
            self.assertTrue(alive, f"start {number + 1} ended by itself:\n{said[-3000:]}")
            self.assertNotIn("passed over", said)
            if before and "at step" in said:  # it got far enough to say where it goes on
                self.assertIn(f"at step {before}", said)
            self.assertGreaterEqual(self.newest(), before)
        goal = self.newest() + 10
        last = self.train(self.job, f"steps={goal}", "--resume", "auto")
        after = self.losses(last["run"])
        print(f"killed {times} times ({', '.join(f'{kind} {moments.count(kind)}' for kind in sorted(set(moments)))}), "
              f"then from step {goal - 10} to {goal}")
        shutil.rmtree(self.checkpoints)
        self.assertEqual(last["status"], "done")
        whole = self.losses(self.train(self.job, f"steps={goal}", "--resume", "never")["run"])
        both = after.keys() & whole.keys()  # of long runs a report keeps some points
        self.assertGreater(len(both), 0)
        self.assertEqual({step: after[step] for step in both}, {step: whole[step] for step in both})
        self.assertIn(goal, after)

    def test_five_times(self):
        self.killed(5, seed=1)


@unittest.skipUnless(os.environ.get("LOCKSTEP_SLOW"), "some minutes: ctest -L slow")
class EverythingKilledOften(EverythingKilled):
    test_five_times = None

    def test_fifty_times(self):
        self.killed(50, seed=2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
