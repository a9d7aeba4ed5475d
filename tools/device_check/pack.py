"""Programs of a build and the libraries that they need, as one file to carry to a machine with a GPU.

Such a machine may have neither this project's libraries nor a way to install them. Programs lose their
symbols on the way; Open MPI's launcher comes with those of its plug-ins that two ranks on one machine
can use.
"""
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from . import libraries

LARGEST_BYTES = 48 << 20  # the sources travel too, and some ways to a device end at 64 MiB
# Plug-ins for networks and batch systems, which one machine does not need.
NETWORKS = re.compile(r"ucx|uct|ofi|openib|usnic|psm|verbs|monitoring|portals|slurm|tm\.so|lsf|alps|sge"
                      r"|gridengine|java|cuda|fs_|fbtl|fcoll|io_|sharedfp|oshmem|memheap|spml|scoll")


def add_libraries(program: Path, target: Path) -> None:
    for name, at in libraries.needed(program).items():
        if at and not libraries.OF_THE_MACHINE.match(name) and not libraries.TOO_LARGE.match(name):
            if not (target / name).exists():
                shutil.copy(at.resolve(), target / name)


def add_mpi(target: Path, library_folder: Path) -> None:
    mpirun = shutil.which("mpirun")
    if mpirun is None:
        raise SystemExit("launch/device_check: no mpirun to pack (two ranks need it). Run launch/setup.")
    mpirun = Path(mpirun).resolve()
    for folder in ("bin", "etc", "share", "lib/openmpi"):
        (target / folder).mkdir(parents=True)
    for name, source in (("mpirun", mpirun), ("orted", mpirun.with_name("orted"))):
        shutil.copy(source, target / "bin" / name)
        add_libraries(source, library_folder)
    where = subprocess.run(["ompi_info", "--parsable", "--path", "pkglibdir", "--path", "datadir"],
                           capture_output=True, text=True, check=True).stdout
    paths = dict(line.split(":")[1:3] for line in where.splitlines() if line.startswith("path:"))
    help_texts = Path(paths["datadir"]) / "openmpi"
    if help_texts.is_dir():
        shutil.copytree(help_texts, target / "share/openmpi")
    for plugin in sorted(Path(paths["pkglibdir"]).glob("mca_*.so")):
        if not NETWORKS.search(plugin.name):
            shutil.copy(plugin, target / "lib/openmpi" / plugin.name)
            add_libraries(plugin, library_folder)


def pack(build: Path, programs: list[str], with_mpi: bool, file: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="device_check_") as folder:
        root = Path(folder)
        (root / "lib").mkdir()
        for name in programs:
            target = root / "programs" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["strip", "-o", target, build / name], check=True)
            add_libraries(build / name, root / "lib")
        if with_mpi:
            add_mpi(root / "mpi", root / "lib")
        with tarfile.open(file, "w:xz", preset=6) as archive:
            archive.add(root, arcname=".")
    size = file.stat().st_size
    print(f"{file}: {size / (1 << 20):.1f} MiB, {len(programs)} programs")
    if size > LARGEST_BYTES:
        raise SystemExit(f"launch/device_check: {file} is larger than {LARGEST_BYTES >> 20} MiB (it may "
                         "not travel). Name fewer parts with --pack.")


def unpack(file: Path) -> Path:
    """The folder beside the file that holds what is in it."""
    target = file.with_name(file.name.split(".")[0])
    stamp = target / "unpacked"
    told = f"{file.stat().st_mtime_ns} {file.stat().st_size}"
    if not stamp.exists() or stamp.read_text() != told:
        shutil.rmtree(target, ignore_errors=True)
        with tarfile.open(file) as archive:
            archive.extractall(target)
        stamp.write_text(told)
    return target
