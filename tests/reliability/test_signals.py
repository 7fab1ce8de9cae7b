"""Hang-ups, time limits, closed pipes and full disks: the work is saved and the exit code says what to do."""
import subprocess

from drills import *


class Signals(Drill):
    def stopped_by(self, number, code, *arguments, launched=False):
        job = self.text_job(ranks=2, steps=100000, checkpoint={"directory": str(self.folder / f"ck-{number}")})
        if launched:
            processes = self.start_ranks(job, ["--json", *arguments], ["--json", *arguments])
        else:
            processes = [self.start("train", job, "--json", *arguments)]
        before = self.recorded_steps()
        wait_for(lambda: self.recorded_steps() > before + 3)
        processes[0].send_signal(number)
        for ended, out, err in self.finish(processes):
            self.assertEqual(ended, code, out + err)
        self.assertEqual(len(self.saved_steps(self.folder / f"ck-{number}")), 1)

    def test_a_hang_up_saves(self):
        self.stopped_by(signal.SIGHUP, 130)

    def test_sigquit_saves(self):
        self.stopped_by(signal.SIGQUIT, 130)

    def test_sigusr1_saves_and_asks_for_a_requeue(self):
        self.stopped_by(signal.SIGUSR1, 75)
        report = json.loads(self.run_lockstep("report", "last", "--json").stdout)
        self.assertEqual(report["run"]["status"], "interrupted")

    def test_sigusr1_to_one_rank_of_a_launcher_ends_all_with_75(self):
        self.stopped_by(signal.SIGUSR1, 75, launched=True)

    def test_sigterm_to_every_process_of_the_job_saves(self):
        job = self.text_job(ranks=2, steps=100000, checkpoint={"directory": str(self.folder / "ck")})
        process = self.start("train", job)
        ranks = self.ranks_of(process)
        wait_for(lambda: self.recorded_steps() > 3)
        for pid in (*ranks.values(), process.pid):  # as `scancel` does
            os.kill(pid, signal.SIGTERM)
        (code, out, err), = self.finish([process])
        self.assertEqual(code, 130, out + err)
        self.assertEqual(len(self.saved_steps(self.folder / "ck")), 1)

    def test_a_notice_file_saves_and_asks_for_a_requeue(self):
        notice = self.folder / "notice"
        job = self.text_job(ranks=2, steps=100000, checkpoint={"directory": str(self.folder / "ck"),
                                                               "preempt_file": str(notice)})
        process = self.start("train", job)
        wait_for(lambda: self.recorded_steps() > 3)
        notice.touch()
        (code, out, err), = self.finish([process])
        self.assertEqual(code, 75, out + err)
        self.assertEqual(len(self.saved_steps(self.folder / "ck")), 1)

    def test_a_reader_that_leaves_does_not_end_the_run(self):
        job = self.text_job(ranks=2, steps=300, checkpoint={"directory": str(self.folder / "ck")})
        command = f"{LOCKSTEP} train {job} | head -1; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.environment, capture_output=True,
                              text=True, timeout=240)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.saved_steps(self.folder / "ck"), [300])

    def test_a_result_that_cannot_be_written_is_an_error(self):
        command = f"{LOCKSTEP} train {self.text_job(ranks=2, steps=3)} --json > /dev/full"
        done = subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.environment, capture_output=True,
                              text=True, timeout=240)
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("cannot write to standard output", done.stderr)

    def test_ranks_that_hang_are_ended_when_the_stop_timeout_is_over(self):
        job = self.text_job(ranks=2, steps=100000, checkpoint={"stop_timeout": "2s"})
        process = self.start("train", job)
        ranks = self.ranks_of(process)
        wait_for(lambda: self.recorded_steps() > 3)
        for pid in ranks.values():
            os.kill(pid, signal.SIGSTOP)
        process.send_signal(signal.SIGTERM)
        (code, out, err), = self.finish([process], timeout=120)
        self.assertEqual(code, 130, out + err)
        self.assertIn("stop_timeout", err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
