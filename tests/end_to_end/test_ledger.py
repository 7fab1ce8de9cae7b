"""The ledger of a run: which samples its steps read, over crashes, resumes and other numbers of ranks."""
import os

from harness import *


class Ledger(EndToEnd):
    def proof(self, run, expect=0):
        done = self.run_lockstep("report", run, "--ledger", "--json")
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        return json.loads(done.stdout)

    def test_a_kill_and_a_resume_on_other_ranks_read_every_sample_once(self):
        job = self.text_job(ranks=4, steps=70, checkpoint={"every_steps": 5, "directory": str(self.folder / "kept")},
                            layout={"shard": 4, "zero": 3})
        killed = self.train(job, "steps=40", "--chaos", "kill rank=2 step=33")
        self.assertEqual(killed["restarts"], 1)
        first = self.proof(killed["run"])
        self.assertTrue(first["exact"], first)
        self.assertEqual(first["steps"], 40)
        resumed = self.train(job, "--resume", "cluster=1x2xcpu", "layout.shard=2", "batch.micro=8")
        whole = self.proof(resumed["run"])
        self.assertTrue(whole["exact"], whole)
        self.assertEqual(whole["steps"], 70)
        self.assertGreaterEqual(whole["epochs_complete"], 1)
        self.assertEqual(whole["done_again"], first["done_again"])
        self.assertEqual(whole["sections"], 1)

    def test_everything_killed_and_resumed_is_exact(self):
        job = self.text_job(ranks=2, steps=600, checkpoint={"every_steps": 5})
        process = self.start("train", job)
        wait_for(lambda: list((self.folder / "home" / "runs").glob("*/checkpoints/step-*")))
        ranks = self.ranks_of(process)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=600)
        wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in ranks.values()))
        resumed = self.train(job, "--resume", "cluster=1x3xcpu", "--chaos", "kill rank=0")
        proof = self.proof(resumed["run"])
        self.assertTrue(proof["exact"], proof)
        self.assertEqual(proof["steps"], 600)

    def test_a_ledger_that_lacks_a_step_is_found_out(self):
        run = self.train(self.text_job(steps=6))["run"]
        self.assertTrue(self.proof(run)["exact"])
        file = self.folder / "home" / "runs" / run / "ledger.json"
        ledger = json.loads(file.read_text())
        entries = ledger["sections"][0]["entries"].split(";")
        del entries[3]
        ledger["sections"][0]["entries"] = ";".join(entries)
        file.write_text(json.dumps(ledger))
        proof = self.proof(run, expect=3)
        self.assertEqual({problem["kind"] for problem in proof["problems"]}, {"steps", "lost"})
        self.assertIn("NOT exact", self.run_lockstep("report", run, "--ledger").stdout)


if __name__ == "__main__":
    unittest.main()
