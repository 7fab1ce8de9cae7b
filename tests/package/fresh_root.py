"""A fresh Debian 12 in a folder, made by debootstrap from the package mirror of this machine, and commands run inside it."""
import os
import pathlib
import shutil
import subprocess

SUITE = "bookworm"
# Its own mounts and processes; nothing of them is left when the command ends. The user's strings are arguments, never script.
INSIDE = ('mount -t tmpfs tmpfs "$1/dev/shm" && chmod 1777 "$1/dev/shm" && root=$1 && user=$2 && folder=$3 && home=$4 && shift 4 && '
          'exec chroot --userspec="$user" "$root" env -i -C "$folder" HOME="$home" LC_ALL=C.UTF-8 '
          'DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"')


def why_not():
    """Why no fresh root can be made here; empty when one can."""
    if os.geteuid() != 0:
        return "debootstrap and chroot need root"
    if not shutil.which("debootstrap"):
        return "debootstrap is not installed (apt install debootstrap)"
    if not mirror():
        return f"this machine has no package mirror of {SUITE}"
    allowed = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True)
    return "" if allowed.returncode == 0 else f"namespaces are not allowed here: {allowed.stderr.strip()}"


def mirror():
    """The address that apt takes this suite from."""
    found = subprocess.run(["apt-get", "indextargets", "--format", "$(SITE) $(RELEASE) $(REPO_URI)", "Created-By: Packages"],
                           capture_output=True, text=True)
    for line in found.stdout.splitlines():
        _, release, address = line.split(" ", 2)
        if release == SUITE:
            return address
    return ""


def call(*command, timeout=3600, **options):
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                          timeout=timeout, **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout[-6000:]}"
    return done.stdout


def kept_base():
    """LOCKSTEP_FRESH_ROOT names a tar file that keeps what debootstrap made, for the next time; empty: nothing is kept."""
    return os.environ.get("LOCKSTEP_FRESH_ROOT", "")


def base_tar(folder):
    """A tar file of what debootstrap makes: the kept one, or a new one in this folder."""
    tar = pathlib.Path(kept_base() or folder / "base.tgz")
    if not tar.exists():
        call("debootstrap", "--variant=minbase", SUITE, folder / "base", mirror())
        call("tar", "-C", folder / "base", "-caf", tar, ".")
        shutil.rmtree(folder / "base")
    return tar


def package_settings(folder):
    """A folder to lay over a fresh root: the package sources of this machine."""
    apt = folder / "etc" / "apt"
    apt.mkdir(parents=True)
    (apt / "sources.list").touch()
    for entry in ("sources.list", "sources.list.d"):
        source = pathlib.Path("/etc/apt") / entry
        if source.is_dir():
            shutil.copytree(source, apt / entry)
        elif source.exists():
            shutil.copy(source, apt / entry)
    shutil.copy("/etc/resolv.conf", folder / "etc" / "resolv.conf")
    quick = folder / "etc" / "dpkg" / "dpkg.cfg.d" / "quick"
    quick.parent.mkdir(parents=True)
    quick.write_text("force-unsafe-io\n")  # nothing here must survive a power cut
    return folder


class FreshRoot:
    def __init__(self, folder):
        self.path = folder / "root"
        self.path.mkdir(parents=True)
        call("tar", "-C", self.path, "-xf", base_tar(folder))
        shutil.copytree(package_settings(folder / "settings"), self.path, dirs_exist_ok=True)
        self.root("useradd", "--create-home", "somebody")
        self.root("apt-get", "update", "-q")

    def run(self, *command, user="somebody", folder="/home/somebody", timeout=3600):
        """(exit code, stdout and stderr) of a command inside."""
        done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--kill-child", f"--mount-proc={self.path}/proc", "sh", "-ec",
                               INSIDE, "sh", str(self.path), user, folder, "/root" if user == "root" else f"/home/{user}",
                               *map(str, command)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=timeout)
        return done.returncode, done.stdout

    def ok(self, *command, **options):
        code, text = self.run(*command, **options)
        assert code == 0, f"{' '.join(map(str, command))} ended with {code}\n{text[-6000:]}"
        return text

    def root(self, *command):
        return self.ok(*command, user="root", folder="/root")

    def install(self, *packages):
        return self.root("apt-get", "install", "-y", "-q", *packages)
