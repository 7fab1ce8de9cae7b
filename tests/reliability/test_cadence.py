"""How often a run saves when the job does not say: as the plan has it, then as saves and failures turn out."""
import sqlite3

from drills import *


class Cadence(Drill):
    def cadences(self):
        """What the run has told of its cadence so far, oldest first."""
        path = pathlib.Path(self.environment["LOCKSTEP_HOME"]) / "runs.db"
        try:
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5) as store:
                return [json.loads(row[0]) for row in store.execute(
                    "SELECT data FROM events WHERE kind = 'checkpoint_cadence' ORDER BY number")]
        except sqlite3.OperationalError:
            return []

    def saves(self):
        try:
            return len(self.events("checkpoint"))
        except sqlite3.OperationalError:
            return 0

    def test_without_a_cadence_of_the_job_it_keeps_the_bound_and_counts_failures(self):
        job = self.text_job(ranks=2, steps=1000000,
                            checkpoint={"directory": str(self.folder / "ck"), "max_lost": "4s"})
        process = self.start("train", job, "--json")
        ranks = self.ranks_of(process)
        wait_for(lambda: self.saves() >= 2)
        first = self.cadences()[0]
        self.assertLessEqual(first["worst_lost_seconds"], 4)
        self.assertEqual(first["failures"], 0)
        os.kill(ranks[1], signal.SIGKILL)
        self.ranks_of(process, generation=2)
        before = self.saves()
        wait_for(lambda: self.saves() >= before + 2)
        last = wait_for(lambda: [told for told in self.cadences() if told["failures"] == 1])[-1]
        self.assertGreater(last["failures_per_second"], 0)
        self.assertLessEqual(last["worst_lost_seconds"], 4)
        process.send_signal(signal.SIGINT)
        (code, out, err), = self.finish([process])
        self.assertEqual(code, 130, out + err)
        self.assertIn("checkpoints every", err)
        self.assertIn("what a single lost rank held is restored from the other ranks' memory", err)

    def test_a_cadence_of_the_job_is_kept(self):
        job = self.text_job(ranks=2, steps=60, checkpoint={"directory": str(self.folder / "ck"), "every_steps": 20})
        self.train(job)
        self.assertEqual(self.cadences(), [])
        saved = self.saved_steps(self.folder / "ck")  # one that is due while another is written follows it
        self.assertEqual((saved[0], saved[-1]), (20, 60))


if __name__ == "__main__":
    unittest.main(verbosity=2)
