"""The executable must not link libtorch; with --timing, what needs no engine must start in under 50 ms (best of 20).

Usage: check_executable.py EXECUTABLE [--timing]
"""
import subprocess
import sys
import time

executable = sys.argv[1]
linked = subprocess.run(["ldd", executable], capture_output=True, text=True, timeout=300, check=True).stdout
for library in ("libtorch", "libc10", "libmpi", "libgloo"):
    assert library not in linked, f"{executable} links {library}:\n{linked}"


def best_milliseconds(arguments: list[str], runs: int) -> float:
    best = float("inf")
    for _ in range(runs):
        start = time.monotonic()
        subprocess.run([executable, *arguments], stdout=subprocess.DEVNULL, timeout=300, check=True)
        best = min(best, time.monotonic() - start)
    return best * 1000


timing = "--timing" in sys.argv
suggestion = ["suggest", "--params", "7e9", "--gpus", "8", "--dataset-tokens", "1e9", "--no-studies", "--json"]
for arguments in (["--help"], ["--version"], ["train", "--help"], suggestion):
    taken = best_milliseconds(arguments, 20 if timing else 1)
    print(f"lockstep {' '.join(arguments)}: {taken:.1f} ms")
    assert not timing or taken < 50, f"lockstep {' '.join(arguments)} took {taken:.1f} ms"
