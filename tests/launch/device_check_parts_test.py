#!/usr/bin/env python3
"""Every program with tests of a CUDA device is in a part of launch/device_check, or is named here.

usage: device_check_parts_test.py BUILD        (a build with the preset emulated)
"""
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
from device_check import parts  # noqa: E402

# What ops, layers and the step are made of. Tests of the whole program are not among the parts.
FOLDERS = {"core", "attention", "layers", "optim", "parallel", "model", "rl"}
# They test the emulated device, and are not built for a real one.
EMULATED_ONLY = {"tests/core/emulated_device_test", "tests/attention/attention_cuda_mutation_test",
                 "tests/layers/kernel_cuda_mutation_test"}


def main() -> int:
    build = Path(sys.argv[1]).resolve()
    listing = subprocess.run(["ctest", "--test-dir", build, "-L", "emulated", "--show-only=json-v1"],
                             check=True, capture_output=True, text=True).stdout
    programs = set()
    for test in json.loads(listing)["tests"]:
        program = Path(test.get("command", [""])[0])
        if program.is_relative_to(build / "tests") and program.parent.name in FOLDERS:
            programs.add(program.relative_to(build).as_posix())
    run = {job.program for part in parts.PARTS for job in part.jobs}
    missing = sorted(programs - run - EMULATED_ONLY)
    for program in missing:
        print(f"{program} has tests of a CUDA device, but no part of launch/device_check runs it. Add it to "
              "tools/device_check/parts.py.")
    if not programs:
        print("no programs found: is the build there?")
    return 1 if missing or not programs else 0


if __name__ == "__main__":
    sys.exit(main())
