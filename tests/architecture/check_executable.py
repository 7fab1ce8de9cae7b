"""The executable must not link libtorch, and what needs no engine must start in under 50 ms (best of 20)."""
import subprocess
import sys
import time

executable = sys.argv[1]
linked = subprocess.run(["ldd", executable], capture_output=True, text=True, timeout=30, check=True).stdout
for library in ("libtorch", "libc10", "libmpi", "libgloo"):
    assert library not in linked, f"{executable} links {library}:\n{linked}"


def best_milliseconds(arguments: list[str]) -> float:
    best = float("inf")
    for _ in range(20):
        start = time.monotonic()
        subprocess.run([executable, *arguments], stdout=subprocess.DEVNULL, timeout=30, check=True)
        best = min(best, time.monotonic() - start)
    return best * 1000


suggestion = ["suggest", "--params", "7e9", "--gpus", "8", "--dataset-tokens", "1e9", "--no-studies", "--json"]
for arguments in (["--help"], ["--version"], ["train", "--help"], suggestion):
    taken = best_milliseconds(arguments)
    print(f"lockstep {' '.join(arguments)}: {taken:.1f} ms")
    assert taken < 50, f"lockstep {' '.join(arguments)} took {taken:.1f} ms"
