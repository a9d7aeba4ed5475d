"""Which shared libraries programs need, where those that are not found may lie, and Open MPI's parts.

The loader itself is asked, so nothing but the program is needed. Libraries of the C library and of the
driver belong to a machine and are never packed; cuBLASLt is too large to carry and comes with any
CUDA toolkit, also with the one that Python packages bring.
"""
import ctypes
import glob
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
NEEDED = re.compile(r"^\s*(\S+) => (.+?)(?: \(0x[0-9a-f]+\))?$")
# Of the machine: the C library, the driver.
OF_THE_MACHINE = re.compile(r"(ld-linux-x86-64|lib(c|m|dl|rt|pthread|resolv|util|nsl|cuda))\.so")
TOO_LARGE = re.compile(r"libcublas(Lt)?\.so")
LOADER = "/lib64/ld-linux-x86-64.so.2"
DRIVERS = ["/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/lib/wsl/lib"]


def needed(program: Path, environment=None) -> dict[str, Path | None]:
    """Every library that a program or library needs, at any depth, and where it was found."""
    # As ldd does it. With --list the loader ends at the first library that is missing.
    listing = subprocess.run(
        [LOADER, program], capture_output=True, text=True,
        env={**(os.environ if environment is None else environment), "LD_TRACE_LOADED_OBJECTS": "1"})
    found = {}
    for line in listing.stdout.splitlines():
        if match := NEEDED.match(line):
            missing = "not found" in match[2]
            found[match[1]] = None if missing else Path(match[2])
    return found


def toolkit_folders() -> list[str]:
    folders = [ROOT / ".cache/cuda/lib64", ROOT / ".cache/cuda/lib",
               "/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib",
               "/opt/cuda/lib64"]
    if nvcc := shutil.which("nvcc"):
        folders.append(Path(nvcc).resolve().parent.parent / "lib64")
    for packages in [*sys.path, *glob.glob("/usr/local/lib/python3*/dist-packages")]:
        folders += glob.glob(f"{packages}/nvidia/*/lib")
    return [str(folder) for folder in folders]


def environment_for(programs: list[Path], packed: Path | None) -> tuple[dict, dict]:
    """The environment to run programs in, and of each program what it lacks even so."""
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    path = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]

    def add(folder: str) -> None:
        if folder not in path:
            path.append(folder)
            environment["LD_LIBRARY_PATH"] = ":".join(path)

    if packed and (packed / "mpi").is_dir() and not shutil.which("mpirun"):
        environment.update(mpi_environment(packed / "mpi"))
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        for folder in DRIVERS:
            if (Path(folder) / "libcuda.so.1").exists():
                add(folder)
                break
    places = ([str(packed / "lib")] if packed else []) + toolkit_folders()
    lacking = {}
    launcher = mpirun(environment)
    for program in programs + ([launcher] if launcher else []):
        # A library that is found may lack others in turn.
        for _ in range(8):
            missing = [name for name, at in needed(program, environment).items() if at is None]
            before = list(path)
            for name in missing:
                for folder in places:
                    if (Path(folder) / name).exists():
                        add(folder)
                        break
            if before == path:
                break
        if missing:
            lacking[program] = sorted(missing)
    return environment, lacking


def mpirun(environment: dict) -> Path | None:
    found = shutil.which("mpirun", path=environment.get("PATH"))
    return Path(found) if found else None


def mpi_environment(prefix: Path) -> dict[str, str]:
    """Open MPI reads where it lies from these; it was built to lie elsewhere."""
    libraries = prefix / "lib"
    return {
        "PATH": f"{prefix / 'bin'}:{os.environ.get('PATH', '')}",
        "OPAL_PREFIX": str(prefix), "OPAL_BINDIR": str(prefix / "bin"),
        "OPAL_LIBDIR": str(libraries), "OPAL_PKGLIBDIR": str(libraries / "openmpi"),
        "OPAL_DATADIR": str(prefix / "share"), "OPAL_PKGDATADIR": str(prefix / "share/openmpi"),
        "OPAL_SYSCONFDIR": str(prefix / "etc"), "PMIX_INSTALL_PREFIX": str(prefix),
        "OMPI_MCA_mca_base_component_path": str(libraries / "openmpi"),
    }
