"""The stacks that are killed: how each is started, which process is which rank, and which steps it has completed."""
import collections
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import measure  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
JOB = measure.ROOT / "specs" / "jobs" / "gpt-10m.yaml"  # the shapes below
SHAPE = {"layers": 6, "hidden": 384, "heads": 6, "vocab": 256, "positions": 256}
DATA = "/usr/share/common-licenses"

# `generation` rises with every re-forming of the ranks: a step that was under way at the kill and was completed by the
# survivors all the same is told from the first one after the recovery.
Step = collections.namedtuple("Step", "time step generation rank pid")


class Stack:
    """One running job. Processes are in sessions of their own; what they say is kept with the time it was said."""
    name = ""
    detects = re.compile("^$")  # the first line that shows that the failure was noticed
    every_rank_reports = True

    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.steps_file = folder / "steps"
        self.said = []  # (time, line)
        self.processes = []
        folder.mkdir(parents=True)
        self.start()

    def start(self):
        raise NotImplementedError

    def spawn(self, command, environment=None):
        process = subprocess.Popen([str(word) for word in command], cwd=self.folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})})
        self.processes.append(process)
        for pipe, take in ((process.stdout, self.take_output), (process.stderr, self.take_error)):
            threading.Thread(target=self.read, args=(pipe, take), daemon=True).start()
        return process

    @staticmethod
    def read(pipe, take):
        for line in pipe:
            take(line.rstrip("\n"), time.time())

    def take_error(self, line, now):
        self.said.append((now, line))

    take_output = take_error

    def steps(self):
        """Every step so far, in the order of completion."""
        try:
            lines = self.steps_file.read_text().split("\n")[:-1]
        except FileNotFoundError:
            return []
        return [Step(float(when), *map(int, rest)) for when, *rest in (line.split() for line in lines)]

    def pids(self):
        """{rank: pid} of the newest processes that completed a step."""
        return {step.rank: step.pid for step in self.steps()}

    def is_alive(self):
        return all(process.poll() is None for process in self.processes)

    def stop(self):
        self.end_processes()
        (self.folder / "said.log").write_text("".join(f"{when:.3f} {line}\n" for when, line in self.said))

    def end_processes(self):
        for signal_number, seconds in ((signal.SIGTERM, 5), (signal.SIGKILL, 30)):
            for process in self.processes:
                try:
                    os.killpg(process.pid, signal_number)
                except ProcessLookupError:
                    pass
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline and any(process.poll() is None for process in self.processes):
                time.sleep(0.05)
        for pid in self.pids().values():  # a rank may have a session of its own
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


class Lockstep(Stack):
    name = "Lockstep"
    detects = re.compile(r"rank \d+ (was killed|died|closed|gave no sign|does not)")
    every_rank_reports = False

    def start(self):
        self.home = self.folder / "home"
        args = self.args
        self.spawn([args.lockstep, "train", JOB, f"cluster=1x{args.ranks}xcpu", f"batch.micro={args.micro}",
                    f"batch.sequence_length={args.seq}", "threads_per_rank=1", "optimizer.schedule=constant",
                    "optimizer.warmup_steps=0", "steps=1000000", "recovery.restarts=1000", f"data.path={DATA}",
                    *args.override, "--report-steps"], {"LOCKSTEP_HOME": str(self.home)})

    def ranks(self):
        """What the agent tells about the ranks of this generation, {generation, pids}."""
        for told in self.home.glob("runs/*/ranks.json"):
            return json.loads(told.read_text())
        return None

    def take_output(self, line, now):
        """Steps come on standard output the moment they are completed; `now` is a little later, to our disadvantage."""
        if not line.startswith("{"):
            return
        told = self.ranks()
        with open(self.steps_file, "a") as file:
            file.write(f"{now:.6f} {json.loads(line)['step']} {told['generation']} 0 {told['pids'][0]}\n")

    def pids(self):
        told = self.ranks()
        return dict(enumerate(told["pids"])) if told else {}

    def version(self):
        return measure.run([self.args.lockstep, "--version"], 60).strip().splitlines()[0]


class Torchrun(Stack):
    name = "torchrun, as shipped"
    environment = {}
    detects = re.compile(r"failed \(exitcode: -?\d+\)")

    def start(self):
        shape = [word for key, value in SHAPE.items() for word in (f"--{key}", value)]
        self.spawn([self.args.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", self.args.ranks,
                    "--max-restarts", 1000, HERE / "pytorch_elastic.py", *shape, "--seq", self.args.seq, "--micro",
                    self.args.micro, "--data", DATA, "--steps-file", self.steps_file, "--checkpoint",
                    self.folder / "checkpoint.pt", "--every", self.args.checkpoint_steps],
                   {"GLOO_SOCKET_IFNAME": "lo", **self.environment})

    def version(self):
        return "torch " + measure.run([self.args.python, "-c", "import torch; print(torch.__version__)"], 120).strip()


class TorchrunFresh(Torchrun):
    """Workers do not share the agent's store, whose keys outlive a restart (pytorch issue 135712)."""
    name = "torchrun, own store per restart"
    environment = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}


class Torchft(Stack):
    name = "torchft, as shipped"
    heartbeat = []  # options of the lighthouse
    detects = re.compile(r"got exception in|Exception in|Connection closed by peer")

    def start(self):
        port = measure.free_port()
        self.spawn([pathlib.Path(self.args.torchft_python).parent / "torchft_lighthouse", "--min_replicas", 1,
                    "--join_timeout_ms", 10000, "--bind", f"[::]:{port}", *self.heartbeat])
        shape = [word for key, value in SHAPE.items() for word in (f"--{key}", value)]
        for replica in range(self.args.ranks):
            self.spawn([self.args.torchft_python, "-m", "torch.distributed.run", "--nnodes", 1, "--nproc-per-node", 1,
                        "--master-port", measure.free_port(), "--max-restarts", 1000, HERE / "torchft_replica.py", *shape,
                        "--seq", self.args.seq, "--micro", self.args.micro, "--data", DATA, "--steps-file", self.steps_file],
                       {"REPLICA_GROUP_ID": str(replica), "NUM_REPLICA_GROUPS": str(self.args.ranks),
                        "TORCHFT_LIGHTHOUSE": f"http://localhost:{port}", "GLOO_SOCKET_IFNAME": "lo"})

    def version(self):
        code = "import importlib.metadata as m, torch; print('torchft', m.version('torchft'), 'torch', torch.__version__)"
        return measure.run([self.args.torchft_python, "-c", code], 120).strip()


class TorchftQuick(Torchft):
    """A replica counts as dead after one second without a heartbeat instead of five."""
    name = "torchft, heartbeat timeout 1 s"
    heartbeat = ["--heartbeat_timeout_ms", 1000]


STACKS = {"lockstep": Lockstep, "torchrun": Torchrun, "torchrun-fresh": TorchrunFresh, "torchft": Torchft,
          "torchft-quick": TorchftQuick}
