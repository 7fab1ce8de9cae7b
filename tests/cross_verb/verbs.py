"""The verbs of `lockstep` as a user calls them, with one engine kept warm for every `train`."""
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

BUILD = pathlib.Path(os.environ["LOCKSTEP_BUILD_DIR"])
SOURCE = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"])
LOCKSTEP = str(BUILD / "lockstep")
HERE = pathlib.Path(__file__).parent
DOOR = os.environ.get("CROSS_VERB_DOOR", str(BUILD / "tests" / "cross_verb" / "libengine_door.so"))
FOREIGN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "LOCKSTEP_PROFILE", "LOCKSTEP_BACKEND")
SECONDS = 600  # a verb that hangs, not one that is slow
SPACE = "knobs: {num_workers: {choices: [1, 2], default: 1}}\n"


@dataclasses.dataclass
class Answer:
    """What a verb said. `value`: the JSON on stdout; `error`: its sentence where it refused; `notes`: all of stderr."""
    command: str
    code: int
    value: dict
    error: str
    notes: str = ""

    @property
    def accepts(self):
        return self.code == 0

    @property
    def refuses(self):
        return self.code in (2, 3)


class Verbs:
    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="cross-verb-"))
        self.home = self.folder / "home"
        self.environment = {k: v for k, v in os.environ.items()
                            if k not in FOREIGN and not k.startswith(("SLURM_", "OMPI_", "PMI"))}
        self.environment.update(LOCKSTEP_HOME=str(self.home), LOCKSTEP_ENGINE=DOOR, OMP_NUM_THREADS="1",
                                OPENBLAS_NUM_THREADS="1", GLOG_minloglevel="2")
        self.engine = None
        self.engines = 0
        self.log = self.folder / "engine.log"
        self.folder.joinpath("space.yaml").write_text(SPACE)

    def close(self):
        self.stop_engine()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- the engine --------------------------------------------------------------------------------------------------
    def start_engine(self):
        if self.engine is not None and self.engine.poll() is None:
            return
        self.engines += 1
        path = self.folder / f"engine-{self.engines}"
        self.environment["CROSS_VERB_ENGINE"] = str(path)
        self.engine = subprocess.Popen(
            [sys.executable, HERE / "engine_host.py", BUILD / "liblockstep_engine.so", path], env=self.environment,
            stdout=subprocess.DEVNULL, stderr=self.log.open("w"))
        while not path.exists() and self.engine.poll() is None:
            try:
                self.engine.wait(0.02)
            except subprocess.TimeoutExpired:
                pass

    def stop_engine(self):
        if self.engine is not None:
            self.engine.kill()
            self.engine.wait()

    # --- verbs -------------------------------------------------------------------------------------------------------
    def run(self, *arguments, environment=None):
        arguments = [str(argument) for argument in arguments]
        command = " ".join(["lockstep", *(f"'{a}'" if any(c in a for c in " {}[]") else a for a in arguments)])
        try:
            done = subprocess.run([LOCKSTEP, *arguments], cwd=self.folder, env={**self.environment, **(environment or {})},
                                  text=True, capture_output=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self.stop_engine()
            return Answer(command, 124, {}, f"took more than {SECONDS} s")
        value = last_json(done.stdout)
        error = ""
        if done.returncode != 0:
            lines = [line[10:] for line in done.stderr.splitlines() if line.startswith("lockstep: ")]
            error = (value or {}).get("error") or (lines[-1] if lines else done.stderr[-300:].strip())
        return Answer(command, done.returncode, value or {}, error, done.stderr)

    def write(self, name, job):
        path = self.folder / name
        path.write_text(json.dumps(job))  # JSON is YAML
        return name

    def plan(self, job, *arguments, **options):
        return self.run("plan", job, *arguments, "--no-what-if", "--json", **options)

    def dry_run(self, job, *arguments, **options):
        return self.run("train", job, *arguments, "--dry-run", "--json", **options)

    def start(self, job, *arguments, **options):
        """One step by the real engine, ranks as threads."""
        self.start_engine()
        answer = self.run("train", job, *arguments, "--backend", "local", "--no-record", "--json", **options)
        if "the engine died" in answer.error:  # say how, where it was not a refusal
            answer.error += f" with {self.engine.wait(SECONDS)}: {self.log.read_text()[-500:]}"
        return answer

    def tune(self, job, *arguments, **options):
        """The verdict on the job as it is written: the baseline of a study of one trial. An outcome that is a refusal
        gets the code that `train` gives it: 2 for invalid, 3 for out of memory."""
        answer = self.run("tune", job, *arguments, "--simulate", "--trials", 1, "--json", **options)
        failures = answer.value.get("failures") or {}
        if answer.code != 3 or not failures:
            return answer
        shown = self.run("tune", "--show", "last", "--all", "--json").value
        trial = (shown.get("history") or [{}])[0]
        code = {"invalid": 2, "oom": 3}.get(trial.get("outcome"), 1)
        return Answer(answer.command, code, answer.value, trial.get("message") or trial.get("error") or "")


def last_json(text):
    """The value of stdout: one document, or the last line of several."""
    for piece in (text, text.strip().splitlines()[-1] if text.strip() else ""):
        try:
            return json.loads(piece)
        except ValueError:
            continue
    return None


def machine(ranks, memory=None, price=2.0, kind="cpu"):
    """A cluster of one node whose hours cost something and whose nodes fail."""
    group = {"kind": kind, "nodes": 1, "devices_per_node": ranks, "price_per_device_hour": price,
             "failures_per_1000_node_days": 40}
    if memory is not None:
        group["device"] = {"memory": f"{memory}B"}
    return {"name": f"1x{ranks}x{kind}", "groups": [group]}
