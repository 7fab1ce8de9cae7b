"""Starts pieces of Python as the ranks of one world, with torchrun's variables."""
import os
import socket
import subprocess
import sys
import textwrap

OURS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCKSTEP_BACKEND",
        "LOCKSTEP_RUN_ID")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def clean_environment(**more):
    kept = {name: value for name, value in os.environ.items()
            if name not in OURS and not name.startswith(("SLURM_", "OMPI_", "PMI"))}
    return {**kept, **more}


def start_ranks(text, world=2, python=sys.executable, **variables):
    """One process per rank; `text` may be a program or a list with one per rank."""
    texts = [text] * world if isinstance(text, str) else text
    port = str(free_port())
    return [subprocess.Popen([python, "-c", textwrap.dedent(texts[rank])], text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE,
                             env=clean_environment(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1",
                                                   MASTER_PORT=port, **variables)) for rank in range(world)]


def finish_ranks(processes, timeout=300):
    """[(exit code, stdout, stderr)] by rank; none is left behind."""
    try:
        outputs = [process.communicate(timeout=timeout) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return [(process.returncode, *output) for process, output in zip(processes, outputs)]


def run_ranks(text, world=2, **options):
    return finish_ranks(start_ranks(text, world, **options))
