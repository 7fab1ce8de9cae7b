"""A source file that includes against the flow does not compile: each target sees the headers of its folders alone.

Usage: check_include_roots.py COMPILER FOLDER=INCLUDE_DIRECTORIES ...    directories separated by ':'
"""
import subprocess
import sys
import tempfile

compiler = sys.argv[1]
roots = dict(argument.split("=", 1) for argument in sys.argv[2:])


def compiles(folder: str, header: str) -> tuple[bool, str]:
    with tempfile.NamedTemporaryFile("w", suffix=".cpp") as source:
        source.write(f'#include "{header}"\n')
        source.flush()
        flags = [f"-I{root}" for root in roots[folder].split(":") if root]
        done = subprocess.run([compiler, "-std=c++20", "-fsyntax-only", *flags, source.name], capture_output=True, text=True,
                              timeout=600)
    return done.returncode == 0, done.stderr


def expect(folder: str, header: str, wanted: bool) -> None:
    ok, errors = compiles(folder, header)
    print(f"a file of {folder}/ that includes {header}: {'compiles' if ok else 'does not compile'}")
    assert ok == wanted, errors
    assert ok or f"{header}: No such file" in errors or f"'{header}' file not found" in errors, errors


expect("planner", "lockstep/cost/pricer/pricer.h", True)
expect("cost", "lockstep/plan/plan.h", True)
expect("cost", "lockstep/planner/planner.h", False)
expect("spec", "lockstep/plan/plan.h", False)
expect("planner", "lockstep/nn/model.h", False)
