"""A real Slurm cluster on one machine, for drills: slurmctld on this host, one slurmd in the namespaces of every node.

Needs root and Debian's slurmctld, slurmd, slurm-client, munge, iproute2 and util-linux.

    with SlurmCluster(4) as cluster:
        cluster.run("sinfo")
        cluster.power_off(2); cluster.power_on(2); cluster.cut(3); cluster.heal(3)
"""
import os
import socket
import subprocess
import time

import namespaces

PROGRAMS = ("slurmctld", "slurmd", "srun", "munged", "setpriv", *namespaces.PROGRAMS)


class SlurmCluster(namespaces.Nodes):
    """`port` and the next one are Slurm's; clusters side by side need others, and another `prefix` and `network`."""

    def __init__(self, nodes, cpus=2, prefix="lss", network="10.78.0", port=16827):
        super().__init__(nodes, prefix=prefix, network=network)
        self.cpus, self.port = cpus, port
        self.services = []
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def configure(self):
        for name in ("munge", "state", "spool"):
            (self.folder / name).mkdir()
        self.folder.chmod(0o755)
        host = socket.gethostname().split(".")[0]
        lines = [
            "ClusterName=drill", f"SlurmctldHost={host}({self.network}.254)", f"SlurmctldPort={self.port}",
            f"SlurmdPort={self.port + 1}",
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
        lines += [f"NodeName=n{i} NodeHostname=n{i} NodeAddr={self.address(i)} CPUs={self.cpus} RealMemory=1000"
                  for i in self.numbers()]
        lines.append("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        with open(self.folder / "hosts", "a") as hosts:
            hosts.write(f"{self.network}.254 {host}\n")
        key = self.folder / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        self.call("chown", "-R", "munge:munge", str(self.folder / "munge"))

    def serve(self, name, words):
        log = open(self.folder / f"{name}.log", "w")
        self.services.append(subprocess.Popen(words, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                              env=self.environment, start_new_session=True))

    def up(self):
        missing = namespaces.missing_programs(PROGRAMS)
        if missing:
            raise RuntimeError(f"a drill needs {', '.join(missing)}: apt-get install slurmctld slurmd slurm-client munge "
                               "iproute2 util-linux")
        super().up()
        self.configure()
        munge = self.folder / "munge"
        self.serve("munged", ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", "-F",
                              f"--key-file={munge}/key", f"--socket={munge}/socket", f"--pid-file={munge}/pid",
                              f"--log-file={munge}/log", f"--seed-file={munge}/seed"])
        self.wait(lambda: (munge / "socket").exists(), "munged")
        self.serve("slurmctld", ["slurmctld", "-D", "-f", str(self.folder / "slurm.conf")])
        for node in self.numbers():
            self.power_on(node)
        self.wait_for_nodes()

    def wait_for_nodes(self):
        """Until all of them are idle."""
        self.wait(lambda: len(set(self.run("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split())) == self.count, "nodes")

    def wait(self, condition, what, timeout=90):
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what}: not there after {timeout} s\n{self.run('sinfo', '-N')}{self.run('squeue')}")
            time.sleep(0.2)

    def run(self, *words, timeout=60):
        return subprocess.run(words, env=self.environment, capture_output=True, text=True, timeout=timeout).stdout

    def power_on(self, node):
        (self.folder / "spool" / f"n{node}").mkdir(exist_ok=True)
        self.heal(node)
        log = open(self.folder / f"n{node}.log", "w")
        self.start_on(node, f"slurmd -D -N n{node} -f {self.folder}/slurm.conf & wait $!", stdout=log, stderr=log,
                      stdin=subprocess.DEVNULL, env=self.environment)

    def down(self):
        for process in self.services:
            process.kill()
        super().down()
