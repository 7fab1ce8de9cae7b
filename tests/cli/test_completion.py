"""`lockstep completion` in real shells: the words that bash, zsh and fish offer at the cursor."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

LOCKSTEP = os.path.join(os.environ["LOCKSTEP_BUILD_DIR"], "lockstep")
BACKENDS = {"local", "tcp", "gloo", "mpi", "nccl"}
SCHEDULERS = {"slurm", "kubernetes", "kubeflow", "ray", "skypilot", "mpi", "ssh", "local"}


def output(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, **options)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    assert done.stderr == "", done.stderr
    return done.stdout


class Completion(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        for shell in ("bash", "zsh", "fish"):
            (cls.folder / f"{shell}.script").write_text(output(LOCKSTEP, "completion", shell))
        cls.work = cls.folder / "work"
        (cls.work / "jobs").mkdir(parents=True)
        for name in ("big job.yaml", "small.yml", "notes.txt", "$(touch made).yaml"):
            (cls.work / name).touch()
        cls.verbs = set(re.findall(r"^  ([a-z]+) {2,}", output(LOCKSTEP, "--help").split("Subcommands:")[1], re.M))
        cls.verbs -= {"lockstep"}

    def bash(self, *words):
        """What bash offers for the last of these words."""
        script = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _lockstep; '
                  '[ ${#COMPREPLY[@]} -eq 0 ] || printf "%s\\n" "${COMPREPLY[@]}"')
        return output("bash", "--norc", "-c", script, "bash", str(self.folder / "bash.script"), "lockstep", *words,
                      cwd=self.work).splitlines()

    def zsh(self, *words):
        """What the function hands to zsh's completion system: its functions are replaced by ones that print."""
        script = ('compdef() { : }; compadd() { shift; print -l -- "$@" }; _files() { print -r -- "files $*" }; '
                  '_command_names() { print commands }; _describe() { print -l -- ${(P)2} }; '
                  'source "$1"; shift; words=("$@"); CURRENT=$#; _lockstep')
        return output("zsh", "-f", "-c", script, "zsh", str(self.folder / "zsh.script"), "lockstep", *words,
                      cwd=self.work).splitlines()

    def fish(self, line):
        script = f'source {self.folder / "fish.script"}; complete -C "$argv"'
        environment = {**os.environ, "HOME": str(self.folder)}
        return [word.split("\t")[0] for word in
                output("fish", "--no-config", "-c", script, line, cwd=self.work, env=environment).splitlines()]

    def test_bash_offers_every_verb(self):
        self.assertEqual(set(self.bash("")) - {"--help", "--version"}, self.verbs)
        self.assertEqual(self.bash("sugg"), ["suggest"])

    def test_bash_offers_the_flags_of_the_verb_as_its_help_lists_them(self):
        for verb in self.verbs - {"checkpoint", "profile"}:  # theirs belong to what follows
            names = re.findall(r"^  (-\S+)", output(LOCKSTEP, verb, "--help"), re.M)
            listed = set(re.findall(r"--[a-z_-]+", " ".join(names)))
            listed = {name for name in listed if "_" not in name or name.replace("_", "-") not in listed}
            self.assertEqual(set(self.bash(verb, "--")), listed, verb)

    def test_bash_offers_the_values_that_a_flag_takes(self):
        self.assertEqual(set(self.bash("train", "job.yaml", "--backend", "")), BACKENDS)
        self.assertEqual(set(self.bash("train", "job.yaml", "--backend", "=", "g")), {"gloo"})
        self.assertEqual(set(self.bash("train", "job.yaml", "--backend", "=")), BACKENDS)
        self.assertEqual(set(self.bash("completion", "")), {"bash", "zsh", "fish"})

    def test_bash_offers_the_schedulers_of_launch(self):
        listed = re.search(r"--on TEXT:\{(.*?)\}", output(LOCKSTEP, "launch", "--help"))[1].split(",")
        self.assertEqual(set(self.bash("launch", "--on", "")), set(listed))
        self.assertLessEqual(set(listed), SCHEDULERS)

    def test_bash_offers_job_files_and_folders_to_verbs_that_read_jobs(self):
        for verb in ("train", "launch", "plan", "tune"):
            self.assertEqual(set(self.bash(verb, "")), {"big job.yaml", "small.yml", "$(touch made).yaml", "jobs"}, verb)
        self.assertIn("notes.txt", self.bash("train", "job.yaml", "--plan", ""))
        self.assertEqual(sorted(os.listdir(self.work)), sorted(["big job.yaml", "small.yml", "notes.txt",
                                                                 "$(touch made).yaml", "jobs"]))

    def test_bash_offers_subcommands_and_programs_after_two_dashes(self):
        self.assertEqual(set(self.bash("checkpoint", "")), {"inspect", "verify", "reshard", "export"})
        self.assertIn("bash", self.bash("launch", "--", "bas"))
        self.assertEqual(self.bash("launch", "--", "python3", "no"), ["notes.txt"])

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh_offers_the_same(self):
        self.assertEqual({line.split(":")[0] for line in self.zsh("")}, self.verbs)
        self.assertEqual(set(self.zsh("train", "job.yaml", "--backend", "")), BACKENDS)
        self.assertEqual(self.zsh("launch", ""), ["files -g *.y(a|)ml"])
        self.assertEqual(set(self.zsh("launch", "-")), set(self.bash("launch", "-")))
        self.assertEqual(set(self.zsh("checkpoint", "")), set(self.bash("checkpoint", "")))
        self.assertEqual(self.zsh("launch", "--", ""), ["commands"])

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh_loads_it_from_a_folder_of_functions(self):
        place = self.folder / "functions"
        place.mkdir(exist_ok=True)
        shutil.copy(self.folder / "zsh.script", place / "_lockstep")
        found = output("zsh", "-f", "-c", f"fpath=({place} $fpath); autoload -U compinit; compinit -D -u; "
                                          "print ${_comps[lockstep]}", env={**os.environ, "HOME": str(self.folder)})
        self.assertEqual(found.strip(), "_lockstep")

    @unittest.skipUnless(shutil.which("fish"), "fish is not installed")
    def test_fish_offers_the_same(self):
        self.assertEqual(set(self.fish("lockstep ")), self.verbs)
        self.assertEqual(set(self.fish("lockstep train job.yaml --backend ")), BACKENDS)
        self.assertEqual(set(self.fish("lockstep launch --")), set(self.bash("launch", "--")))
        self.assertIn("small.yml", self.fish("lockstep launch sm"))
        self.assertTrue({"inspect", "verify"} <= set(self.fish("lockstep checkpoint ")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
