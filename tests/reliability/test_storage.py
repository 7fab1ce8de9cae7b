"""Disks that ranks do not share or that are slow, and weights that are not numbers."""
import shutil
import struct
import subprocess

from drills import *

MOUNTS = subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0


class Disks(Drill):
    @unittest.skipUnless(MOUNTS, "needs user namespaces: one rank gets a disk of its own")
    def test_a_folder_that_ranks_do_not_share_ends_the_run_before_a_step(self):
        folder = self.folder / "ck"
        folder.mkdir()
        job = self.text_job(ranks=2, steps=40, checkpoint={"directory": str(folder), "every_steps": 20})
        own_disk = ("unshare", "-rm", "sh", "-c", f'mount -t tmpfs none {folder} && exec "$@"', "sh")
        port = str(free_port())
        ranks = [self.start("train", job, prefix=prefix, environment={
            "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
            for rank, prefix in enumerate(((), own_disk))]
        ended = self.finish(ranks)
        self.assertEqual([code for code, _, _ in ended], [4, 4], ended)
        self.assertIn("share", ended[0][2])
        self.assertEqual(self.recorded_steps(), 0)


@unittest.skipUnless(os.environ.get("LOCKSTEP_SLOW"), "a minute of waiting: ctest -L slow")
@unittest.skipUnless(shutil.which("strace"), "needs strace: it delays every fsync")
class SlowDisk(Drill):
    def trained(self, **fields):
        """Every fsync takes two seconds: that of a file and its folder as long as ranks wait for each other."""
        job = self.text_job(ranks=2, communication={"timeout": "4s"}, **fields)
        done = self.run_lockstep("train", job, "--json", prefix=(
            "strace", "-f", "-o", "/dev/null", "-e", "trace=fsync,fdatasync",
            "-e", "inject=fsync,fdatasync:delay_enter=2000000"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        last = json.loads(done.stdout.strip().splitlines()[-1])
        self.assertEqual(last["restarts"], 0, done.stderr)
        return last

    def test_one_slower_than_the_timeout_of_the_communicator_only_takes_longer(self):
        self.trained(steps=4, checkpoint={"directory": str(self.folder / "ck"), "every_steps": 2})
        self.assertIn(4, self.saved_steps(self.folder / "ck"))

    def test_no_step_waits_for_it_when_a_checkpoint_proves_sound(self):
        folder = self.folder / "ck"
        self.trained(steps=3000, checkpoint={"directory": str(folder), "every_steps": 5, "keep": 1})
        self.assertIn(3000, self.saved_steps(folder))
        self.assertTrue(list(folder.glob("step-*/pinned")))


class Weights(Drill):
    def poisoned(self, change):
        """Exports a model, changes its safetensors file and trains from it."""
        exported = self.folder / "exported"
        job = self.text_job(ranks=1, steps=1)
        self.train(job, "--export", exported)
        path = exported / "model.safetensors"
        data = bytearray(path.read_bytes())
        length, = struct.unpack_from("<Q", data)
        header = json.loads(data[8:8 + length])
        name = sorted(key for key in header if key != "__metadata__")[0]
        path.write_bytes(change(data, 8 + length, name, header))
        self.expect_error(2, [name], "train", job, f"weights={exported}", "--export", self.folder / "again")
        self.assertFalse((self.folder / "again").exists())

    def test_pretrained_weights_with_nan_are_refused(self):
        def change(data, begin, name, header):
            struct.pack_into("<f", data, begin + header[name]["data_offsets"][0], float("nan"))
            return data
        self.poisoned(change)

    def test_pretrained_weights_of_whole_numbers_are_refused(self):
        def change(data, begin, name, header):
            header[name]["dtype"] = "I32"
            text = json.dumps(header, separators=(",", ":")).encode()
            text += b" " * (-len(text) % 8)
            return struct.pack("<Q", len(text)) + text + data[begin:]
        self.poisoned(change)


if __name__ == "__main__":
    unittest.main(verbosity=2)
