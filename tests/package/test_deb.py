"""The Debian package of this build: its fields, its files, and that they run from where it puts them."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD_DIR"])
SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])


def output(*command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, **options)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


class DebianPackage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-deb-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        # gzip: the quickest to write.
        output("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", cls.folder / "work", "-D",
               f"CPACK_OUTPUT_FILE_PREFIX={cls.folder}", "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip")
        cls.deb = next(cls.folder.glob("*.deb"))
        cls.root = cls.folder / "root"
        output("dpkg-deb", "-x", cls.deb, cls.root)

    def field(self, name):
        return output("dpkg-deb", "-f", self.deb, name).strip()

    def names_in(self, field):
        return set(re.findall(r"(?:^|, |\| )([a-z0-9.+-]+)", self.field(field)))

    def test_its_name_has_version_and_architecture(self):
        version = re.search(r"project\(lockstep VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text())[1]
        architecture = output("dpkg", "--print-architecture").strip()
        self.assertEqual(self.deb.name, f"lockstep_{version}_{architecture}.deb")
        self.assertEqual((self.field("Package"), self.field("Version")), ("lockstep", version))

    def test_it_depends_only_on_what_the_executable_links(self):
        self.assertIn("libc6", self.names_in("Depends"))
        for name in self.names_in("Depends"):
            self.assertNotRegex(name, "torch|gloo|openmpi|blas")

    def test_what_is_opened_at_run_time_is_recommended_or_suggested(self):
        self.assertTrue(any(name.startswith("libtorch") for name in self.names_in("Recommends")))
        self.assertIn("libopenblas0", self.names_in("Recommends"))
        if (BUILD / "liblockstep_comm_gloo.so").exists():  # the demo's job trains over it
            self.assertTrue(any(name.startswith("libgloo") for name in self.names_in("Recommends")))
        if (BUILD / "liblockstep_comm_mpi.so").exists():
            self.assertIn("openmpi-bin", self.names_in("Suggests"))

    def test_its_files_stand_where_debian_looks_for_them(self):
        files = {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()}
        expected = {"usr/bin/lockstep", "usr/lib/lockstep/liblockstep_engine.so", "usr/lib/lockstep/liblockstep_comm_tcp.so",
                    "usr/share/bash-completion/completions/lockstep", "usr/share/zsh/vendor-completions/_lockstep",
                    "usr/share/fish/vendor_completions.d/lockstep.fish", "usr/share/man/man1/lockstep.1.gz",
                    "usr/share/doc/lockstep/copyright", "usr/share/lockstep/specs/jobs/gpt-bytes-demo.yaml"}
        self.assertEqual(expected - files, set())
        allowed = ("usr/bin/lockstep", "usr/lib/lockstep/liblockstep_", "usr/share/",
                   "usr/include/lockstep/plugin/", "usr/include/lockstep/base/plugin_tag.h",
                   "usr/lib/cmake/Lockstep/")  # what a plugin is built with
        self.assertEqual({name for name in files if not name.startswith(allowed)}, set(), "other headers and archives stay out")
        self.assertEqual({str(path) for path in self.root.rglob("*") if path.is_dir() and path.stat().st_mode & 0o777 != 0o755},
                         set(), "folders that everybody may read")

    def test_no_file_names_the_tree_it_was_built_in(self):
        for path in (self.root / "usr/bin/lockstep", *sorted((self.root / "usr/lib/lockstep").iterdir())):
            self.assertNotIn(str(BUILD), output("objdump", "-p", path), path)

    def test_it_plans_and_finds_its_engine_and_backends_where_it_is_unpacked(self):
        lockstep = self.root / "usr/bin/lockstep"
        environment = {**os.environ, "LOCKSTEP_HOME": str(self.folder / "home")}
        self.assertIn("tokens", output(lockstep, "plan", "--model", "llama2-13b", "--cluster", "4x8xH100", env=environment))
        run = output(lockstep, "train", "specs/jobs/gpt-bytes-demo.yaml", "steps=2", "evaluation.every=0", "cluster=1x2xcpu",
                     "--backend", "tcp", "--json", env=environment, cwd=self.root / "usr/share/lockstep")
        self.assertIn('"status":"done"', run.splitlines()[-1])

    def test_its_completions_are_those_of_this_build(self):
        self.assertEqual((self.root / "usr/share/bash-completion/completions/lockstep").read_text(),
                         output(BUILD / "lockstep", "completion", "bash"))


if __name__ == "__main__":
    missing = [tool for tool in ("cpack", "dpkg-deb", "dpkg-shlibdeps") if not shutil.which(tool)]
    if missing:
        print(f"skipped: {', '.join(missing)} not installed (scripts/setup.sh package)")
        raise SystemExit(77)
    unittest.main(verbosity=2)
