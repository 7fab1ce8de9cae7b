"""Checks that a folder of lockstep/ depends only on folders above it in the flow order, in #include lines and in CMake.

Usage: check_dependencies.py REPOSITORY | --self-test
"""
import pathlib
import re
import sys
import tempfile

ORDER = ("base spec plan telemetry cost planner sim schedulers tune diagnose report elastic "
         "comm kernels nn parallel data checkpoint engine cli").split()
# Torch-free: everything above `comm` in docs/architecture.md, comm itself (raw buffers), and the command line.
TORCH_FREE = set(ORDER[: ORDER.index("comm") + 1]) | {"cli"}

INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.M)
DEPENDS = re.compile(r"DEPENDS\s+([a-z_\s]+?)(?:[A-Z_]{3,}|\))", re.S)


def problems(root: pathlib.Path) -> list[str]:
    found = []
    folders = [p for p in sorted((root / "lockstep").iterdir()) if p.is_dir()]
    for folder in folders:
        name = folder.name
        if name not in ORDER:
            found.append(f"lockstep/{name}: not a folder of the architecture; add it to ORDER and docs/architecture.md")
            continue
        allowed = set(ORDER[: ORDER.index(name) + 1])
        if name == "cli":
            allowed = set(TORCH_FREE)
        for source in sorted(folder.rglob("*")):
            if source.suffix not in {".h", ".cpp", ".cu", ".cuh"}:
                continue
            for target in INCLUDE.findall(source.read_text()):
                where = source.relative_to(root)
                if target.startswith("lockstep/"):
                    if target.split("/")[1] not in allowed:
                        found.append(f"{where}: includes {target}, which is below {name} in the flow")
                elif name in TORCH_FREE and re.match(r"(torch|ATen|c10)/", target):
                    found.append(f"{where}: includes {target}, but {name} is torch-free")
        cmake = folder / "CMakeLists.txt"
        if cmake.exists():
            for group in DEPENDS.findall(cmake.read_text()):
                for target in group.split():
                    if target in ORDER and target not in allowed:
                        found.append(f"{cmake.relative_to(root)}: DEPENDS {target}, which is below {name} in the flow")
    return found


def self_test() -> list[str]:
    cases = [("spec/a.h", '#include "lockstep/planner/p.h"\n'), ("cost/a.h", "#include <torch/types.h>\n"),
             ("base/CMakeLists.txt", "lockstep_folder(base SOURCES a.cpp DEPENDS spec)\n"),
             ("cli/a.cpp", '#include "lockstep/nn/model.h"\n'), ("misc/a.h", "")]
    missed = []
    for path, text in cases:
        with tempfile.TemporaryDirectory() as temp:
            file = pathlib.Path(temp) / "lockstep" / path
            file.parent.mkdir(parents=True)
            file.write_text(text)
            if len(problems(pathlib.Path(temp))) != 1:
                missed.append(f"self-test: {path} with {text!r} was not noticed")
    return missed


if __name__ == "__main__":
    result = self_test() if sys.argv[1] == "--self-test" else problems(pathlib.Path(sys.argv[1]))
    print("\n".join(result) or "dependency direction: clean")
    sys.exit(1 if result else 0)
