"""Installs this build into a temporary prefix, builds examples/as_a_library against it outside the tree, runs its programs."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD_DIR"])
SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
WITH_ENGINE = os.environ["LOCKSTEP_WITH_ENGINE"] == "ON"
LAUNCHER = os.environ.get("LOCKSTEP_LAUNCHER", "")


def run(*command, cwd=None, **variables):
    done = subprocess.run(list(map(str, command)), cwd=cwd, env={**os.environ, **variables}, capture_output=True, text=True,
                          timeout=1800)
    if done.returncode != 0:
        raise AssertionError(f"{command} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


class OwnModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-package-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.prefix = cls.folder / "prefix"
        run("cmake", "--install", BUILD, "--prefix", cls.prefix)
        # A copy: nothing of the tree but what was installed may be found.
        shutil.copytree(SOURCE / "examples" / "as_a_library", cls.folder / "source")
        launcher = [f"-DCMAKE_CXX_COMPILER_LAUNCHER={LAUNCHER}"] if LAUNCHER else []
        # Unoptimised: libtorch's headers are most of the time, and what is linked is as it was installed.
        run("cmake", "-S", cls.folder / "source", "-B", cls.folder / "build", "-G", "Ninja", *launcher,
            "-DCMAKE_CXX_FLAGS_RELEASE=-O0",
            f"-DCMAKE_PREFIX_PATH={cls.prefix}", f"-DOWN_MODEL_TRAIN={'ON' if WITH_ENGINE else 'OFF'}")
        # The temporary folder's name is not part of what ccache compares.
        run("cmake", "--build", cls.folder / "build", CCACHE_BASEDIR=str(cls.folder), CCACHE_NOHASHDIR="1")

    def test_the_installed_executable_runs(self):
        self.assertRegex(run(self.prefix / "bin" / "lockstep", "--version"), r"\d+\.\d+")

    def test_an_install_names_no_file_of_the_tree(self):
        for file in (self.prefix / "lib").rglob("cmake/Lockstep/*.cmake"):
            self.assertNotIn(str(SOURCE), file.read_text(), file)

    def test_a_plan_is_made_through_the_api(self):
        text = run(self.folder / "build" / "plan_model", "llama2-13b", "2x8xH100")
        self.assertRegex(text, r"layout .*\b(dp|shard|tp|pp)=")
        self.assertRegex(text, r"memory [\d.]+ of [\d.]+ GiB")
        self.assertRegex(text, r"\d+ tokens per second")

    def test_planning_alone_links_no_libtorch(self):
        self.assertNotIn("libtorch", run("ldd", self.folder / "build" / "plan_model"))

    @unittest.skipUnless(WITH_ENGINE, "this build has no engine")
    def test_a_model_type_of_its_own_trains_alike_under_every_layout(self):
        text = run(self.folder / "build" / "train_own_model", cwd=self.folder)
        losses = {match[1]: list(map(float, match[2].split())) for match in re.finditer(r"^(\S+) losses: (.*)$", text, re.M)}
        self.assertEqual(set(losses), {"dp=1", "dp=2,shard=2,zero=3", "pp=2"}, text)
        alone = losses.pop("dp=1")
        self.assertLess(alone[-1], 0.8 * alone[0], "it learns")
        for layout, found in losses.items():
            self.assertEqual(len(found), len(alone))
            for a, b in zip(found, alone):
                self.assertAlmostEqual(a, b, delta=1e-4 * b, msg=layout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
