#!/usr/bin/env python3
"""Lets the PyPI wheel of torch run on a CPU without gigabytes of CUDA libraries.

The Linux wheel of torch on PyPI is the CUDA build: its libraries refuse to load unless cuBLAS,
cuDNN, NCCL and others are present, although nothing on a CPU ever calls them. This script collects
the names of those libraries and of every function expected from them, compiles one small library in
which each of those functions returns "no device", and links it beside torch's own libraries under
each name. torch.cuda.is_available() is then False, and everything on the CPU is the real torch.

Needs nm, objdump and cc, which every machine that builds this project has. Running it again is
harmless.
"""

import argparse
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

STUB_NAME = "libcoppice_no_cuda.so"
CUDA_LIBRARY = re.compile(r"NEEDED\s+(lib(?:cu|nv|nccl)\S+)")
CUDA_SYMBOL = re.compile(r"^(__)?(cu|nv|nccl)[A-Za-z0-9_]+$")

# A function that returns text must return some; every other one returns cudaErrorNoDevice.
RETURNS_TEXT = re.compile(r"Get\w*(String|Name)$|^ncclGetLastError$")


def output_of(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def expected_functions(library: Path) -> dict[str, str]:
    """Names of the CUDA functions that a library expects, each with its symbol version or ""."""
    lines = output_of("nm", "-D", "--undefined-only", library).splitlines()
    symbols = (line.split()[-1].partition("@") for line in lines if line.strip())
    return {name: version for name, _, version in symbols if CUDA_SYMBOL.match(name)}


def stub_source(functions: dict[str, str]) -> str:
    lines = []
    for name in sorted(functions):
        if RETURNS_TEXT.search(name):
            lines.append(f'const char* {name}(void) {{ return "no CUDA in this environment"; }}')
        else:
            lines.append(f"int {name}(void) {{ return 100; }}")
    return "\n".join(lines) + "\n"


def version_script(functions: dict[str, str]) -> str:
    """The loader insists on the versions that the callers were linked with."""
    nodes: dict[str, list[str]] = defaultdict(list)
    for name, version in sorted(functions.items()):
        if version:
            nodes[version].append(name)
    return "\n".join(f"{node} {{ {'; '.join(names)}; }};" for node, names in sorted(nodes.items()))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("lib", type=Path, help="the directory torch/lib of an installed torch")
    directory: Path = parser.parse_args().lib

    libraries = [path for path in sorted(directory.glob("lib*.so*")) if not path.is_symlink()]
    libraries = [path for path in libraries if path.name != STUB_NAME]
    if not libraries:
        print(f"{directory} holds no libraries. Give the directory torch/lib.", file=sys.stderr)
        return 2

    wanted: set[str] = set()
    functions: dict[str, str] = {}
    for library in libraries:
        wanted |= set(CUDA_LIBRARY.findall(output_of("objdump", "-p", library)))
        functions |= expected_functions(library)

    source = directory / "no_cuda.c"
    versions = directory / "no_cuda.map"
    source.write_text(stub_source(functions))
    versions.write_text(version_script(functions))
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-w", source, f"-Wl,--version-script={versions}"]
        + ["-o", directory / STUB_NAME],
        check=True,
    )
    for name in wanted:
        link = directory / name
        if link.is_symlink() or not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(STUB_NAME)
    return 0


if __name__ == "__main__":
    sys.exit(main())
