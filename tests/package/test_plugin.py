"""Installs this build into a temporary prefix, builds examples/own-model against it outside the tree, and trains it."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import plugin_runs  # noqa: E402

BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD_DIR"])
LAUNCHER = os.environ.get("LOCKSTEP_LAUNCHER", "")


class Plugin(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-package-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.prefix, cls.source = cls.folder / "prefix", cls.folder / "own-model"
        # What the Debian package has, and no more.
        cls.run_it("cmake", "--install", BUILD, "--prefix", cls.prefix, "--component", "runtime")
        shutil.copytree(cls.prefix / "share" / "lockstep" / "examples" / "own-model", cls.source)
        launcher = [f"-DCMAKE_CXX_COMPILER_LAUNCHER={LAUNCHER}"] if LAUNCHER else []
        cls.run_it("cmake", "-B", "build", *launcher, f"-DCMAKE_PREFIX_PATH={cls.prefix}", cwd=cls.source)
        cls.run_it("cmake", "--build", "build", cwd=cls.source, CCACHE_BASEDIR=str(cls.folder), CCACHE_NOHASHDIR="1")

    @classmethod
    def run_it(cls, *command, cwd=None, **variables):
        done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=1800,
                              env={**os.environ, "LOCKSTEP_HOME": str(cls.folder / "home"), **variables})
        assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def test_the_template_trains_alike_under_every_layout_and_resumes_exactly(self):
        plugin_runs.check(self, lambda *words: self.run_it(self.prefix / "bin" / "lockstep", *words, cwd=self.source))

    def test_it_links_nothing_of_lockstep(self):
        self.assertNotIn("lockstep", self.run_it("readelf", "-d", self.source / "build" / "libwaves.so"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
