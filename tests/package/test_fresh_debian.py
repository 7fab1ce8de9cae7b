"""The wheel and the Debian package in a fresh Debian 12 with nothing else: what they promise there. Prints their sizes.

The wheel first, then the package without and with what it recommends. Needs root, debootstrap and a package mirror."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import fresh_root  # noqa: E402
import plugin_runs  # noqa: E402

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
PLAN = ("plan", "--model", "llama2-13b", "--cluster", "4x8xH100")
SUGGEST = ("suggest", "--params", "7e9", "--gpus", "8", "--dataset-tokens", "1e9")
ROWS = "model,params_b,hardware,n_gpus,seq_len,global_batch\nllama2-7b,6.7,H100,8,4096,128\n"
TUNE = SOURCE / "tests" / "tune"


def only(pattern):
    found = sorted((SOURCE / "dist").glob(pattern), key=os.path.getmtime)
    assert found, f"no dist/{pattern}"
    return found[-1]


class FreshDebian(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-fresh-"))
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        if not os.environ.get("LOCKSTEP_PACKAGES_MADE"):
            fresh_root.call("make", "-C", SOURCE, "deb", "wheel")
        cls.deb, cls.wheel = only("lockstep_*.deb"), only("lockstep-*.whl")
        cls.fresh = fresh_root.FreshRoot(folder)
        for file in (cls.deb, cls.wheel):
            shutil.copy(file, cls.fresh.path / "home" / "somebody" / file.name)
            print(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB", flush=True)

    def check_the_torch_free_verbs(self, lockstep):
        ok = self.fresh.ok
        self.assertRegex(ok(lockstep, "--version"), r"^lockstep \d+\.\d+\.\d+")
        self.assertIn("tokens", ok(lockstep, *PLAN))
        self.assertIn("llama2-7b", ok(lockstep, *SUGGEST))
        self.write("rows.csv", ROWS)
        self.assertIn("predicted_tokens_per_s_per_gpu", ok(lockstep, "predict", "--rows", "rows.csv"))
        self.write("job.yaml", (SOURCE / "specs/jobs/gpt-bytes-demo.yaml").read_text())
        ok(lockstep, *SUGGEST, "--write", "suggested.yaml")
        study = ok(lockstep, "tune", "suggested.yaml", "--simulate", "--trials", "8", "--json")
        self.assertEqual(json.loads(study.splitlines()[-1])["schema"], "lockstep.study/1")
        self.assertIn("recipe", ok(lockstep, "recipe", "last").lower())
        ranks = ok(lockstep, "launch", "--nproc", "2", "--", "sh", "-c", "echo this is rank $RANK of $WORLD_SIZE")
        for rank in (0, 1):
            self.assertIn(f"this is rank {rank} of 2", ranks)
        self.assertIn("sh", ok(lockstep, "report", "--list"))

    def install_package(self, *flags):
        said = self.fresh.install(*flags, f"/home/somebody/{self.deb.name}")
        packages = re.search(r"(\d+) newly installed", said)
        used = re.search(r"After this operation, (.*) of additional disk space", said)
        print(f"{packages[1]} packages, {used[1]}", flush=True)

    def write(self, name, text):
        (self.fresh.path / "home" / "somebody" / name).write_text(text)
        return name

    def test_1_the_wheel_gives_the_torch_free_verbs_and_says_where_the_engine_is(self):
        self.fresh.install("--no-install-recommends", "python3-venv")
        self.fresh.ok("python3", "-m", "venv", "venv")
        self.fresh.ok("venv/bin/pip", "install", "-q", "--no-index", self.wheel.name)
        self.check_the_torch_free_verbs("venv/bin/lockstep")
        self.assertIn("llama2-7b", self.fresh.ok("venv/bin/python3", "-c", "import lockstep; print(lockstep.suggest("
                                                 "model_size='7B', gpus=8, dataset_size='1B tokens', studies=False))"))
        for name in ("synthetic_space.yaml", "synthetic_worker.py"):
            self.write(name, (TUNE / name).read_text())
        self.fresh.ok("venv/bin/lockstep", "tune", "--space", "synthetic_space.yaml", "--worker", "python3 synthetic_worker.py",
                      "--trials", "8")
        code, text = self.fresh.run("venv/bin/lockstep", "train", "job.yaml")
        self.assertEqual(code, 4, text)
        self.assertIn("the engine is not part of the Python wheel", text)
        self.assertIn("install the Debian package", text)
        libraries = set(re.findall(r"^\s*(\S+\.so\S*)", self.fresh.ok("ldd", "venv/bin/lockstep"), re.M))
        libraries = {pathlib.Path(name).name.split(".so")[0] for name in libraries}
        self.assertLessEqual(libraries, {"linux-vdso", "libm", "libc", "ld-linux-x86-64", "libdl", "libpthread"}, libraries)

    def test_2_the_package_alone_plans_and_names_what_training_needs(self):
        self.install_package("--no-install-recommends")
        self.check_the_torch_free_verbs("lockstep")
        code, text = self.fresh.run("lockstep", "train", "job.yaml")
        self.assertEqual(code, 4, text)
        self.assertIn("apt install libtorch1.13", text)

    def test_3_the_package_with_what_it_recommends_trains(self):
        self.fresh.root("apt-get", "purge", "-y", "-q", "lockstep")
        self.assertFalse((self.fresh.path / "usr/bin/lockstep").exists())
        self.install_package()
        text = self.fresh.ok("lockstep", "train", "specs/jobs/gpt-bytes-demo.yaml", "steps=20", "--json",
                             folder="/usr/share/lockstep")
        print(text[-1500:])
        run = json.loads(text.splitlines()[-1])
        self.assertEqual((run["status"], run["steps"]), ("done", 20))
        self.assertIn("gpt-bytes", self.fresh.ok("lockstep", "report", "last", folder="/usr/share/lockstep"))
        # A model of somebody's own, built there from what the package brings.
        self.fresh.install("cmake", "g++", "make", "libtorch-dev")
        self.fresh.ok("cp", "-r", "/usr/share/lockstep/examples/own-model", ".")
        self.fresh.ok("cmake", "-B", "build", folder="/home/somebody/own-model")
        self.fresh.ok("cmake", "--build", "build", folder="/home/somebody/own-model")
        plugin_runs.check(self, lambda *words: self.fresh.ok("lockstep", *words, folder="/home/somebody/own-model"))
        self.assertIn("_lockstep", (self.fresh.path / "usr/share/bash-completion/completions/lockstep").read_text())


if __name__ == "__main__":
    reason = fresh_root.why_not()
    if reason:
        print(f"skipped: {reason}")
        raise SystemExit(77)
    unittest.main(verbosity=2)
