"""packaging/Containerfile built by buildah from a local image of a fresh Debian 12, and run as services run it.

Needs buildah and a fresh Debian: root, debootstrap and a package mirror; or, without root, what LOCKSTEP_FRESH_ROOT
keeps of one. No image registry. The Debian package is the one in dist/, so nothing is compiled here.
LOCKSTEP_CONTAINER_COMPILE=1 compiles it inside the image, as a user's build does."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(__file__))
import fresh_root  # noqa: E402

SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])


class Container(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-container-"))
        # Without root the files of images belong to ids that only buildah's namespace may remove.
        cls.addClassCleanup(subprocess.run, ["buildah", "unshare", "rm", "-rf", str(cls.folder)] if os.geteuid() != 0 else
                            ["rm", "-rf", str(cls.folder)])
        # No storage of this machine is touched, and no kernel feature but chroot is needed.
        cls.environment = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}
        cls.storage = ["--root", str(cls.folder / "storage"), "--runroot", str(cls.folder / "runroot")]
        if os.environ.get("LOCKSTEP_CONTAINER_COMPILE"):
            package = []
        else:
            if not os.environ.get("LOCKSTEP_PACKAGES_MADE"):
                fresh_root.call("make", "-C", SOURCE, "deb")
            deb = sorted((SOURCE / "dist").glob("lockstep_*.deb"), key=os.path.getmtime)[-1]
            package = ["--build-arg", f"DEB=dist/{deb.name}"]
        base = cls.buildah("from", "scratch").strip()
        cls.buildah("add", base, fresh_root.base_tar(cls.folder), "/")
        cls.buildah("copy", base, fresh_root.package_settings(cls.folder / "settings"), "/")
        cls.buildah("commit", "--rm", base, "localhost/debian:bookworm")
        cls.buildah("build", "--build-arg", "BASE=localhost/debian:bookworm", *package, "-f", SOURCE / "packaging/Containerfile",
                    "-t", "localhost/lockstep", SOURCE)
        cls.image = json.loads(cls.buildah("inspect", "--type", "image", "localhost/lockstep"))["OCIv1"]["config"]
        for line in cls.buildah("images", "--format", "{{.Name}} {{.Size}}").splitlines():
            print(line, flush=True)
        cls.container = cls.buildah("from", "--pull-never", "localhost/lockstep").strip()

    @classmethod
    def buildah(cls, *words):
        done = subprocess.run(["buildah", *cls.storage, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=7200, env=cls.environment)
        assert done.returncode == 0, f"buildah {words} ended with {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-6000:]}"
        return done.stdout

    def start(self, *words, variables=(), user=None):
        """What `docker run IMAGE WORDS` starts: the entry point of the image, then the words."""
        flags = [part for variable in variables for part in ("--env", variable)] + (["--user", user] if user else [])
        done = subprocess.run(["buildah", *self.storage, "run", *flags, self.container, "--", *self.image["Entrypoint"], *words],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1800, env=self.environment)
        return done.returncode, done.stdout

    def ok(self, *words, **options):
        code, text = self.start(*words, **options)
        self.assertEqual(code, 0, text)
        return text

    def test_it_runs_lockstep_and_nothing_else(self):
        self.assertEqual(self.image["Entrypoint"], ["lockstep"])
        self.assertEqual(self.image["Cmd"], ["--help"])
        self.assertEqual(self.image["User"], "lockstep")

    def test_arguments_are_passed_through_as_they_are(self):
        self.assertRegex(self.ok("--version"), r"^lockstep \d")
        self.assertIn("tokens", self.ok("plan", "--model", "llama2-13b", "--cluster", "4x8xH100"))
        code, text = self.start("plan", "--model", "$(touch /tmp/made); x", "--cluster", "4x8xH100")
        self.assertEqual(code, 4, text)
        self.assertIn("$(touch /tmp/made); x", text)

    def test_it_trains_the_demo_as_a_user_without_rights(self):
        text = self.ok("train", "specs/jobs/gpt-bytes-demo.yaml", "steps=4", "cluster=1x2xcpu", "evaluation.every=0", "--json")
        self.assertIn('"status":"done"', text.splitlines()[-1])

    def test_the_bare_word_train_launches_the_job_of_the_variable(self):
        job = "LOCKSTEP_JOB=specs/jobs/gpt-bytes-demo.yaml"
        code, text = self.start("train", variables=[job, "LOCKSTEP_BACKEND=local", "LOCKSTEP_HOME=/nowhere/at/all"])
        self.assertNotEqual(code, 0)
        self.assertIn("/nowhere", text, "it read the job and went on to record it")

    def test_the_bare_word_train_launches_the_job_of_sagemakers_hyperparameters(self):
        values = {"job": "specs/jobs/gpt-bytes-demo.yaml", "steps": "3", "cluster": "1x2xcpu", "evaluation.every": "0"}
        file = self.folder / "hyperparameters.json"
        file.write_text(json.dumps(values))
        self.buildah("copy", "--chmod", "644", self.container, file, "/opt/ml/input/config/hyperparameters.json")
        text = self.ok("train")
        self.assertRegex(text, r"\b3 steps\b|step\s+3\b|3/3")


def why_not():
    if not shutil.which("buildah"):
        return "buildah is not installed (apt install buildah)"
    if os.path.exists(fresh_root.kept_base()):
        return ""  # then nothing needs root
    return fresh_root.why_not()


if __name__ == "__main__":
    reason = why_not()
    if reason:
        print(f"skipped: {reason}")
        raise SystemExit(77)
    unittest.main(verbosity=2)
