"""A real Slurm cluster on one machine, for drills: every node is a network, PID, mount and host-name namespace of its own.

Needs root and Debian's slurmctld, slurmd, slurm-client, munge, iproute2 and util-linux.

    with SlurmCluster(4) as cluster:
        cluster.run("sinfo")
        cluster.power_off(2); cluster.power_on(2); cluster.cut(3); cluster.heal(3)
"""
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

BRIDGE = "lsbr0"
NETWORK = "10.78.0"
PACKAGES = ("slurmctld", "slurmd", "srun", "munged", "ip", "nsenter", "unshare", "setpriv")


def missing_programs():
    return [name for name in PACKAGES if shutil.which(name) is None]


class SlurmCluster:
    def __init__(self, nodes, cpus=2):
        self.nodes = nodes
        self.cpus = cpus
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-slurm-"))
        self.processes = {}
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def __enter__(self):
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_):
        self.down()

    # --- parts -------------------------------------------------------------------------------------------------------
    @staticmethod
    def call(*words, check=True):
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def start(self, name, words):
        log = open(self.folder / f"{name}.log", "w")
        self.processes[name] = subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                                env=self.environment, start_new_session=True)

    def configure(self):
        for name in ("munge", "state", "spool"):
            (self.folder / name).mkdir()
        self.folder.chmod(0o755)
        host = socket.gethostname().split(".")[0]
        lines = [
            "ClusterName=drill", f"SlurmctldHost={host}({NETWORK}.254)", "SlurmctldPort=16827", "SlurmdPort=16828",
            "AuthType=auth/munge", f"AuthInfo=socket={self.folder}/munge/socket", "CredType=cred/munge",
            "SlurmUser=root", "SlurmdUser=root", f"StateSaveLocation={self.folder}/state",
            f"SlurmdSpoolDir={self.folder}/spool/%n", f"SlurmctldPidFile={self.folder}/ctld.pid",
            f"SlurmdPidFile={self.folder}/%n.pid", f"SlurmctldLogFile={self.folder}/ctld.txt",
            f"SlurmdLogFile={self.folder}/%n.txt", "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none", "AccountingStorageType=accounting_storage/none",
            "SelectType=select/cons_tres", "SelectTypeParameters=CR_CPU", "SlurmdParameters=config_overrides",
            "SchedulerParameters=bf_interval=5,sched_interval=5,batch_sched_delay=0", "ReturnToService=2",
            "SlurmdTimeout=10", "SlurmctldTimeout=10", "MessageTimeout=5", "TCPTimeout=2", "InactiveLimit=0",
            "KillWait=5", "JobRequeue=1", "MpiDefault=none"]
        lines += [f"NodeName=n{i} NodeHostname=n{i} NodeAddr={NETWORK}.{i} CPUs={self.cpus} RealMemory=1000"
                  for i in range(1, self.nodes + 1)]
        lines.append("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        names = "".join(f"{NETWORK}.{i} n{i}\n" for i in range(1, self.nodes + 1))
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{NETWORK}.254 {host}\n{names}")
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.call("chown", "-R", "munge:munge", str(self.folder / "munge"))

    def up(self):
        missing = missing_programs()
        if missing:
            raise RuntimeError(f"a drill needs {', '.join(missing)}: apt-get install slurmctld slurmd slurm-client munge "
                               "iproute2 util-linux")
        self.configure()
        munge = self.folder / "munge"
        self.start("munged", ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", "-F",
                              f"--key-file={munge}/key", f"--socket={munge}/socket", f"--pid-file={munge}/pid",
                              f"--log-file={munge}/log", f"--seed-file={munge}/seed"])
        self.call("ip", "link", "add", BRIDGE, "type", "bridge")
        self.call("ip", "addr", "add", f"{NETWORK}.254/24", "dev", BRIDGE)
        self.call("ip", "link", "set", BRIDGE, "up")
        self.wait(lambda: (munge / "socket").exists(), "munged")
        self.start("slurmctld", ["slurmctld", "-D", "-f", str(self.folder / "slurm.conf")])
        for i in range(1, self.nodes + 1):
            self.call("ip", "netns", "add", f"lsn{i}")
            self.call("ip", "link", "add", f"lsv{i}", "type", "veth", "peer", "name", "eth0", "netns", f"lsn{i}")
            self.call("ip", "link", "set", f"lsv{i}", "master", BRIDGE, "up")
            self.call("ip", "-n", f"lsn{i}", "addr", "add", f"{NETWORK}.{i}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                self.call("ip", "-n", f"lsn{i}", "link", "set", device, "up")
            self.power_on(i)
        self.wait(lambda: len(set(self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split())) == self.nodes, "nodes")

    def wait(self, condition, what, timeout=60):
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what}: not there after {timeout} s; see {self.folder}")
            time.sleep(0.2)

    def run(self, *words, timeout=60):
        return subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=timeout).stdout

    # --- what happens to nodes ---------------------------------------------------------------------------------------
    def power_on(self, i):
        (self.folder / "spool" / f"n{i}").mkdir(exist_ok=True)
        script = (f'hostname n{i}; mount --bind {self.folder}/hosts /etc/hosts; mount -t tmpfs none /dev/shm; '
                  f'slurmd -D -N n{i} -f {self.folder}/slurm.conf & wait $!')
        self.start(f"n{i}", ["nsenter", f"--net=/run/netns/lsn{i}", "unshare", "--fork", "--pid", "--mount-proc", "--uts",
                             "--kill-child=KILL", "bash", "-c", script])

    def power_off(self, i):
        """Everything on the node ends at once and nothing says goodbye: its network goes first."""
        self.cut(i)
        process = self.processes.pop(f"n{i}", None)
        if process is None:
            return
        for child in self.run("pgrep", "-P", str(process.pid)).split():
            os.kill(int(child), signal.SIGKILL)  # the first process of its namespace: all others end with it
        process.kill()
        process.wait()

    def cut(self, i):
        self.call("ip", "link", "set", f"lsv{i}", "down")

    def heal(self, i):
        self.call("ip", "link", "set", f"lsv{i}", "up")

    def down(self):
        for i in range(1, self.nodes + 1):
            process = self.processes.pop(f"n{i}", None)
            if process is None:
                continue
            for child in self.run("pgrep", "-P", str(process.pid)).split():
                os.kill(int(child), signal.SIGKILL)
            process.kill()
        for process in self.processes.values():
            process.kill()
        for i in range(1, self.nodes + 1):
            self.call("ip", "netns", "del", f"lsn{i}", check=False)
            self.call("ip", "link", "del", f"lsv{i}", check=False)
        self.call("ip", "link", "del", BRIDGE, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
