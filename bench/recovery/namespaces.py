"""Nodes on one machine, for drills and tests: every node is a network, PID, mount and host-name namespace of its own.

Needs root, iproute2 and util-linux. Files are shared, as on a cluster with a network file system.

    with Nodes(3) as nodes:
        agent = nodes.start_on(1, ["lockstep", "launch", ...])
        nodes.cut(1); nodes.heal(1); nodes.power_off(2)
"""
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile

PROGRAMS = ("ip", "nsenter", "unshare", "mount")


def missing_programs(programs=PROGRAMS):
    return [name for name in programs if shutil.which(name) is None]


def why_not():
    """Why this machine cannot have such nodes; "" where it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if missing_programs():
        return f"not installed: {', '.join(missing_programs())}"
    probe = "lockstep-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True)
    return f"no network namespaces here: {made.stderr.strip()}" if made.returncode != 0 else ""


class Nodes:
    """`prefix` begins the names of links and namespaces, `network` the addresses: node 2 is n2 at 10.79.0.2."""

    def __init__(self, count, prefix="lst", network="10.79.0"):
        self.count, self.prefix, self.network = count, prefix, network
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="lockstep-nodes-"))
        self.processes = {}  # node: its first process, by which it is powered off

    def __enter__(self):
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(self, *_):
        self.down()

    @staticmethod
    def call(*words, check=True):
        done = subprocess.run(words, capture_output=True, text=True, timeout=30)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def numbers(self):
        return range(1, self.count + 1)

    def address(self, node):
        return f"{self.network}.{node}"

    def up(self):
        bridge = f"{self.prefix}br"
        self.call("ip", "link", "add", bridge, "type", "bridge")
        self.call("ip", "addr", "add", f"{self.network}.254/24", "dev", bridge)
        self.call("ip", "link", "set", bridge, "up")
        for node in self.numbers():
            space = f"{self.prefix}n{node}"
            self.call("ip", "netns", "add", space)
            self.call("ip", "link", "add", f"{self.prefix}v{node}", "type", "veth", "peer", "name", "eth0", "netns", space)
            self.call("ip", "link", "set", f"{self.prefix}v{node}", "master", bridge, "up")
            self.call("ip", "-n", space, "addr", "add", f"{self.address(node)}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                self.call("ip", "-n", space, "link", "set", device, "up")
        names = "".join(f"{self.address(node)} n{node}\n" for node in self.numbers())
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")

    def start_on(self, node, script, **options):
        """Powers the node on: `script` is the first shell of its namespaces."""
        words = f"hostname n{node}; mount --bind {self.folder}/hosts /etc/hosts; mount -t tmpfs none /dev/shm; {script}"
        self.processes[node] = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{self.prefix}n{node}", "unshare", "--fork", "--pid", "--mount-proc", "--uts",
             "--kill-child=KILL", "bash", "-c", words], start_new_session=True, **options)
        return self.processes[node]

    def cut(self, node):
        """No packet gets in or out from now on; nobody is told."""
        self.call("ip", "link", "set", f"{self.prefix}v{node}", "down")

    def heal(self, node):
        self.call("ip", "link", "set", f"{self.prefix}v{node}", "up")

    def power_off(self, node):
        """The cable goes first, so that no connection is closed or reset; then every process of the node ends at once."""
        self.cut(node)
        self.end(node)

    def end(self, node):
        process = self.processes.pop(node, None)
        if process is None:
            return
        for child in self.call("pgrep", "-P", str(process.pid), check=False).split():
            os.kill(int(child), signal.SIGKILL)  # the first process of its namespace: the kernel ends all others with it
        process.kill()
        process.wait()

    def pids(self, node, having=""):
        """Of the processes that live in the node's network, and whose command line has `having`."""
        wanted = os.stat(f"/run/netns/{self.prefix}n{node}").st_ino
        found = []
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if os.stat(folder / "ns/net").st_ino == wanted:
                    if having in (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"):
                        found.append(int(folder.name))
            except OSError:
                continue  # it ended meanwhile
        return found

    def down(self):
        for node in self.numbers():
            self.end(node)
            self.call("ip", "netns", "del", f"{self.prefix}n{node}", check=False)
            self.call("ip", "link", "del", f"{self.prefix}v{node}", check=False)
        self.call("ip", "link", "del", f"{self.prefix}br", check=False)
        shutil.rmtree(self.folder, ignore_errors=True)
