"""A run store that cannot be written: the run goes on, says so once, and nothing is recorded as if it were whole."""
import sqlite3
import subprocess

from drills import *


def can_mount():
    done = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True)
    return done.returncode == 0


class Records(Drill):
    def warnings(self, err):
        return [line for line in err.splitlines() if "warning" in line]

    @unittest.skipUnless(can_mount(), "needs user namespaces: a small file system is mounted for the store")
    def test_a_full_store_is_a_warning_and_the_run_is_done(self):
        home = self.folder / "home"
        home.mkdir()
        job = self.text_job(ranks=2, steps=400, checkpoint={"directory": str(self.folder / "ck")})
        shell = f'mount -t tmpfs -o size=300k none {home} && exec "$@"'
        done = self.run_lockstep("train", job, "--json", prefix=("unshare", "-rm", "sh", "-c", shell, "sh"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue(any("record" in line or "store" in line for line in self.warnings(done.stderr)), done.stderr)
        self.assertEqual(json.loads(done.stdout.strip().splitlines()[-1])["steps"], 400)

    def test_steps_whose_records_a_killed_first_rank_took_with_it_are_named(self):
        job = self.text_job(ranks=2, steps=120)
        run = self.train(job, "--chaos", "kill rank=0 step=60; kill rank=0 step=90")["run"]
        with sqlite3.connect(self.folder / "home" / "runs.db") as store:
            lost = [json.loads(row[0]) for row in store.execute("SELECT data FROM events WHERE kind = 'records_lost'")]
        named = {step for hole in lost for step in range(hole["first_step"], hole["last_step"] + 1)}
        recorded = set(self.losses(run))
        self.assertEqual(recorded | named, set(range(1, 121)))
        self.assertFalse(recorded & named)

    def test_a_store_locked_in_mid_run_costs_no_record(self):
        self.train(self.text_job(ranks=2, steps=2))  # makes the store
        job = self.text_job(ranks=2, steps=200)
        process = self.start("train", job, "--json")
        before = self.recorded_steps()
        wait_for(lambda: self.recorded_steps() > before + 2 or process.poll() is not None)
        locker = sqlite3.connect(self.folder / "home" / "runs.db", isolation_level=None, timeout=60)
        locker.execute("BEGIN EXCLUSIVE")
        time.sleep(1)
        locker.execute("COMMIT")
        locker.close()
        (code, out, err), = self.finish([process])
        self.assertEqual(code, 0, out + err)
        self.assertEqual(len(self.losses(json.loads(out.strip().splitlines()[-1])["run"])), 200)


if __name__ == "__main__":
    unittest.main(verbosity=2)
