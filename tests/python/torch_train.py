"""lockstep.train with a module and data of torch. Run with a Python that has torch; the package is on PYTHONPATH."""
import json
import os
import pathlib
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

import torch

import lockstep

LOCKSTEP = pathlib.Path(os.environ["LOCKSTEP_BUILD_DIR"]) / "lockstep"


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))

    def forward(self, x):
        return self.body(x)


class Untypable(torch.nn.Module):
    def forward(self, x):
        return [sorted(x, key=lambda one: id(one)), *(yield x)]


def samples(count=64):
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(count, 8, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-torch-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.job = {"cluster": "1x2xcpu", "batch": {"micro": 8}, "steps": 6, "threads_per_rank": 1,
                    "optimizer": {"kind": "sgd", "learning_rate": 0.1}}


class Handed(Folder):
    def words_for(self, **named):
        file = self.folder / "fake"
        file.write_text(f"#!{sys.executable}\nimport json, sys\n"
                        "sys.stderr.write('lockstep: ' + json.dumps(sys.argv[1:]) + '\\n'); sys.exit(1)\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        os.environ["LOCKSTEP_EXECUTABLE"] = str(file)
        self.addCleanup(os.environ.pop, "LOCKSTEP_EXECUTABLE", None)
        with self.assertRaises(lockstep.RunFailed) as caught:
            lockstep.train(self.job, progress=False, home=self.folder / "home", **named)
        words = json.loads(str(caught.exception))
        return {word.split("=", 1)[0]: json.loads(word.split("=", 1)[1]) for word in words if "=" in word}

    def test_a_module_is_scripted_and_named_by_its_file(self):
        net = Net()
        model = self.words_for(model=net, loss="cross_entropy")["model"]
        self.assertEqual(model["loss"], "cross_entropy")
        loaded = torch.jit.load(model["torchscript"])
        x = torch.randn(3, 8)
        self.assertTrue(torch.equal(loaded(x), net(x)))
        traced = torch.jit.trace(net, x)
        self.assertTrue(torch.equal(torch.jit.load(self.words_for(model=traced, loss="mse")["model"]["torchscript"])(x), net(x)))

    def test_tensors_loaders_and_data_sets_become_the_same_file(self):
        safetensors = __import__("safetensors.torch", fromlist=["torch"])
        inputs, labels = samples()
        data_set = torch.utils.data.TensorDataset(inputs, labels)
        for data in ((inputs, labels), data_set, torch.utils.data.DataLoader(data_set, batch_size=10)):
            section = self.words_for(data=data)["data"]
            read = safetensors.load_file(section["path"])
            self.assertTrue(torch.equal(read["inputs"], inputs) and torch.equal(read["target"], labels))
        half = self.words_for(data=(inputs.bfloat16().t().contiguous().t(), labels.int()))["data"]
        self.assertTrue(torch.equal(safetensors.load_file(half["path"])["inputs"], inputs.bfloat16()))

    def test_a_module_that_cannot_be_scripted_says_why(self):
        with self.assertRaisesRegex(lockstep.SpecError, "torch.jit.script cannot compile Untypable: "):
            lockstep.train(self.job, model=Untypable(), loss="mse", home=self.folder / "home")
        with self.assertRaisesRegex(lockstep.SpecError, "needs its loss"):
            lockstep.train(self.job, model=Net(), home=self.folder / "home")

    def test_a_resumed_module_begins_as_it_was_written_first(self):
        named = {"loss": "mse", "folder": self.folder / "files"}
        first = self.words_for(model=Net(), **named)["model"]["torchscript"]
        kept = pathlib.Path(first).read_bytes()
        self.words_for(model=Net(), resume=True, **named)
        self.assertEqual(pathlib.Path(first).read_bytes(), kept)
        with self.assertRaisesRegex(lockstep.SpecError, "holds another module, which differs in"):
            lockstep.train(self.job, model=torch.nn.Linear(2, 2), resume=True, home=self.folder / "home", **named)


def write_png(path, pixels):
    """[height, width, 3] of bytes."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + bytes(row.reshape(-1).tolist()) for row in pixels)

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


class Trained(Folder):
    def setUp(self):
        super().setUp()
        torch.jit.script(Net()).save(str(self.folder / "probe.pt"))
        job = self.folder / "probe.yaml"
        job.write_text(json.dumps({**self.job, "model": {"torchscript": "probe.pt", "loss": "mse"},
                                   "data": {"kind": "text", "path": "x"}}))
        asked = subprocess.run([str(LOCKSTEP), "train", str(job), "--dry-run"], capture_output=True, text=True, timeout=300)
        if "neither `arch` nor `preset`" in asked.stderr:
            self.skipTest(f"this engine takes no modules: {asked.stderr.strip()}")

    def test_a_module_trains_as_in_a_loop_of_torch(self):
        torch.manual_seed(1)
        net = Net()
        inputs, labels = samples()
        twin = Net()
        twin.load_state_dict(net.state_dict())
        plain = {"kind": "sgd", "learning_rate": 0.1, "momentum": 0.0, "weight_decay": 0.0}
        run = lockstep.train({**self.job, "batch": {"micro": 32}, "optimizer": plain}, model=net,
                             loss="cross_entropy", data=(inputs, labels), progress=False, home=self.folder / "home",
                             overrides={"data.shuffle": False, "data.holdout": 0.0})
        optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
        for _, loss in run.metrics(["loss"])["loss"]:  # both ranks together see all samples in every step
            optimizer.zero_grad()
            expected = torch.nn.functional.cross_entropy(twin(inputs), labels)
            expected.backward()
            optimizer.step()
            self.assertAlmostEqual(loss, expected.item(), places=5)

    def command(self, *words, expected=0):
        done = subprocess.run([str(LOCKSTEP), *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=300,
                              env={**os.environ, "LOCKSTEP_HOME": str(self.folder / "home")})
        self.assertEqual(done.returncode, expected, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def test_a_module_trains_on_a_folder_of_pictures_and_its_export_is_evaluated(self):
        for name, colour in (("dark", 40), ("light", 200)):
            (self.folder / "pictures" / name).mkdir(parents=True)
            for index in range(8):
                write_png(self.folder / "pictures" / name / f"{index}.png", torch.full((10, 12, 3), colour + index))
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
                                  torch.nn.Linear(4, 2))
        torch.jit.script(net).save(str(self.folder / "net.pt"))
        job = self.folder / "job.yaml"
        job.write_text("model: {torchscript: net.pt, loss: cross_entropy, image_size: 8, classes: 2}\ncluster: 1x2xcpu\n"
                       "data: {kind: images, path: pictures, evaluation_path: pictures}\nbatch: {micro: 4}\nsteps: 4\n"
                       "checkpoint: {directory: checkpoints}\n")
        self.command("train", job)
        self.assertIn("set model.image_size and model.classes", self.command(
            "train", job, "model={torchscript: net.pt, loss: cross_entropy}", expected=2))
        self.command("checkpoint", "export", "checkpoints", "--output", "weights")
        found, of_folder = (json.loads(self.command("evaluate", where, *more, "--json").strip().splitlines()[-1])
                            for where, more in (("checkpoints", ()), ("weights", ("--job", job))))
        self.assertEqual((found["samples"], found["loss"], found["accuracy"]), (16, of_folder["loss"], of_folder["accuracy"]))

    def test_norms_of_all_kinds_train_in_bf16(self):
        class Normed(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.groups = torch.nn.Linear(8, 8), torch.nn.GroupNorm(2, 8)
                self.layer, self.batch, self.last = torch.nn.LayerNorm(8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)

            def forward(self, x):
                return self.last(self.batch(self.layer(self.groups(self.first(x)))))

        run = lockstep.train({**self.job, "precision": "bf16"}, model=Normed(), loss="cross_entropy", data=samples(), progress=False,
                             home=self.folder / "home")
        self.assertEqual(run.status, "done")

    def test_what_is_wrong_with_targets_is_said(self):
        inputs, labels = samples()
        run = lockstep.train(self.job, model=Net(), loss="cross_entropy", data=(inputs, labels.int()), progress=False,
                             home=self.folder / "home")
        self.assertEqual(run.status, "done")
        with self.assertRaisesRegex(lockstep.LockstepError, r"gives 3 classes, and a target is 3; number classes from 0"):
            lockstep.train(self.job, model=Net(), loss="cross_entropy", data=(inputs, labels + 1), progress=False,
                           home=self.folder / "home")
        with self.assertRaisesRegex(lockstep.SpecError, "target is text; number the classes"):
            lockstep.train(self.job, model=Net(), loss="cross_entropy", data=(inputs, ["a"] * len(inputs)), progress=False,
                           home=self.folder / "home")


if __name__ == "__main__":
    unittest.main(verbosity=2)
