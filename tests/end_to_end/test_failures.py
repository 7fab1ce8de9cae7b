"""What goes wrong is said once, in one line, with the right exit code, and nothing is lost."""
import os
import sqlite3
import struct

from harness import *


class Killing(EndToEnd):
    def kill_one_of_four(self):
        """Kills rank 2 of a run; returns what the run said, its exit code, and the seconds it took to end."""
        job = self.text_job(ranks=4, steps=100000, recovery={"restarts": 0})
        process = self.start("train", job)
        ranks = self.ranks_of(process)
        wait_for(lambda: self.recorded_steps() > 3)
        killed = time.monotonic()
        os.kill(ranks[2], signal.SIGKILL)
        _, err = process.communicate(timeout=600)
        return err, process.returncode, time.monotonic() - killed


class Failures(Killing):
    def test_a_killed_rank_ends_the_run_and_is_named(self):
        err, code, _ = self.kill_one_of_four()
        self.assertEqual(code, 1)
        messages = [line for line in err.splitlines() if line.startswith("lockstep: ")]
        self.assertEqual(len(messages), 1, err)
        self.assertIn("rank 2", messages[0])
        self.assertIn("SIGKILL", messages[0])
        with sqlite3.connect(self.folder / "home" / "runs.db") as store:
            self.assertEqual(store.execute("PRAGMA integrity_check").fetchone()[0], "ok")
        report = json.loads(self.run_lockstep("report", "last", "--json").stdout)
        self.assertEqual(report["run"]["status"], "failed")

    def test_a_stalled_rank_is_a_timeout_that_names_it(self):
        job = self.text_job(ranks=2, steps=100000, communication={"timeout": "3s"}, recovery={"restarts": 0})
        process = self.start("train", job)
        ranks = self.ranks_of(process)
        wait_for(lambda: self.recorded_steps() > 3)
        os.kill(ranks[1], signal.SIGSTOP)
        out, err = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 1, out + err)
        self.assertRegex(err, r"rank 1\b")

    def test_a_killed_mpi_rank_ends_the_job(self):
        job = self.text_job(ranks=3, steps=100000)
        process = self.start("train", job, prefix=("mpirun", "--oversubscribe", "-np", "3"))
        wait_for(lambda: self.recorded_steps() > 3)
        os.kill(rank_processes(process.pid, b"OMPI_COMM_WORLD_RANK")[1], signal.SIGKILL)
        out, err = process.communicate(timeout=600)
        self.assertNotEqual(process.returncode, 0)
        self.assertRegex(out + err, r"rank 1\b")

    def test_a_locked_store_does_not_cost_the_record(self):
        job = self.text_job(ranks=2, steps=10)
        self.train(job)  # makes the store
        locker = sqlite3.connect(self.folder / "home" / "runs.db", isolation_level=None)
        locker.execute("BEGIN EXCLUSIVE")
        done = self.run_lockstep("train", job, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        warnings = [line for line in done.stderr.splitlines() if "warning" in line]
        self.assertEqual(len(warnings), 1, done.stderr)
        self.assertIn("locked", warnings[0])
        locker.execute("COMMIT")
        locker.close()
        run = json.loads(done.stdout.strip().splitlines()[-1])["run"]
        report = json.loads(self.run_lockstep("report", run, "--json").stdout)
        self.assertEqual(report["run"]["status"], "done")
        self.assertEqual([len(report["loss"]), len(report["ranks"])], [10, 2])

    def test_wrong_keys_units_and_files(self):
        job = self.text_job()
        self.expect_error(2, ["batch.mciro", "micro"], "train", job, "batch.mciro=4")
        text = (self.folder / "bad.yaml")
        text.write_text("model: gpt2-124m\ncluster: 1x2xcpu\nbatsh: {micro: 1}\nsteps: 3\n")
        self.expect_error(2, ["bad.yaml:3:1", "batsh", "batch"], "train", text)
        text.write_text("model: gpt2-124m\ncluster: 1x2xcpu\ndata: {kind: text, path: x}\nsteps: 3\n"
                        "checkpoint: {every: 10 parsecs}\n")
        self.expect_error(2, ["bad.yaml:5:", "parsecs"], "train", text)
        self.expect_error(4, ["nowhere.yaml"], "train", "nowhere.yaml")
        self.expect_error(2, ["llama2-7x", "llama2-7b"], "train", job, "model=llama2-7x")
        self.expect_error(4, ["H100"], "train", job, "model=gpt2-124m", "cluster=1x8xH100")
        self.expect_error(2, ["tp=3", "nearest that works"], "train", job, "layout.tp=3", "layout.dp=1")
        self.expect_error(2, ["trian", "train"], "trian", job)
        self.expect_error(2, ["--nonsense"], "train", job, "--nonsense")

    def test_missing_truncated_and_lying_data(self):
        self.expect_error(4, ["no-such.txt"], "train", self.text_job(), "data.path=/no-such.txt")
        folder = self.write_idx_mnist()
        job = self.mnist_job(ranks=2)
        images = folder / "train-images-idx3-ubyte"
        whole = images.read_bytes()
        images.write_bytes(whole[:-100])
        self.expect_error(2, ["train-images-idx3-ubyte", "100"], "train", job)
        images.write_bytes(struct.pack(">IIII", 2051, 0xFFFFFFFF, 28, 28) + whole[16:])
        self.expect_error(2, ["train-images-idx3-ubyte"], "train", job)
        images.unlink()
        self.expect_error(4, ["train-images", "make data-mnist"], "train", job)

    def test_a_damaged_store_is_said_before_training(self):
        home = self.folder / "home"
        home.mkdir()
        (home / "runs.db").write_bytes(b"this is no database, whatever its name says")
        self.expect_error(2, ["runs.db"], "train", self.text_job(steps=2))
        self.train(self.text_job(steps=2), "--no-record")

    def test_a_batch_beyond_the_data_is_refused(self):
        self.expect_error(2, ["global batch", "batch.micro"], "train", self.text_job(), "batch.micro=100000")

    def test_errors_speak_json_when_asked(self):
        done = self.run_lockstep("train", "nowhere.yaml", "--json")
        self.assertEqual(json.loads(done.stdout)["exit_code"], 4)


@timing
class FailuresTiming(Killing):
    def test_a_killed_rank_ends_the_run_within_ten_seconds(self):
        err, _, taken = self.kill_one_of_four()
        print(f"ended {taken:.2f} s after the kill: {err.strip()}")
        self.assertLess(taken, 10)


if __name__ == "__main__":
    unittest.main(verbosity=2)
