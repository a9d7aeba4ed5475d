#!/usr/bin/env python3
"""Checks that the safetensors library reads what the program exports, and the program what it writes.

A golden model is imported, exported in files of a chosen size and read by name through the index
with safetensors; then numpy arrays are saved with safetensors, in one file and in shards, and the
program imports them. Values are equal bit for bit.

    "$(tools/venv light)/bin/python" tools/check_safetensors.py build/release/launch/coppice

Exit status: 0 equal, 1 not.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("llama_tied", "llama_untied", "llama_linear_f16")
INDEX = "model.safetensors.index.json"


def run(*arguments: object) -> None:
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, arguments))} failed:\n{done.stderr}")


def tensors_of(directory: Path) -> dict[str, np.ndarray]:
    """As transformers finds them: the single file, or each tensor where the index says."""
    single = directory / "model.safetensors"
    if single.exists():
        with safe_open(single, framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}
    index = json.loads((directory / INDEX).read_text())
    tensors = {}
    for name, shard in index["weight_map"].items():
        with safe_open(directory / shard, framework="np") as file:
            tensors[name] = file.get_tensor(name)
    total = sum(tensor.nbytes for tensor in tensors.values())
    if index["metadata"]["total_size"] != total:
        raise SystemExit(f"total_size {index['metadata']['total_size']} instead of {total}")
    return tensors


def parameters_of(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {name: dataset[()] for name, dataset in file["parameters"].items()}


def differences(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> list[str]:
    wrong = sorted(ours.keys() ^ theirs.keys())
    for name in ours.keys() & theirs.keys():
        a, b = ours[name], theirs[name]
        if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
            wrong.append(name)
    return wrong


def save(directory: Path, tensors: dict[str, np.ndarray], shards: int) -> None:
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        save_file(part, directory / file, metadata={"format": "pt"})
        weight_map |= {name: file for name in part}
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("program", type=Path, help="the built coppice")
    program = parser.parse_args().program
    wrong = []
    for model in MODELS:
        source = ROOT / "tests" / "golden" / model
        original = tensors_of(source)
        with tempfile.TemporaryDirectory() as name:
            place = Path(name)
            run(program, "import", "--hf", source, "--out", place / "m.h5")
            for size in ("3KB", "50GB"):
                out = place / f"exported-{size}"
                run(program, "export", "--checkpoint", place / "m.h5", "--out", out,
                    "--max-shard-size", size)  # fmt: skip
                if (out / INDEX).exists() != (size == "3KB"):
                    wrong.append(f"{model}: {size} with the wrong number of files")
                wrong += [f"{model}: {size}: {line}" for line in differences(tensors_of(out), original)]
            for shards in (1, 4):
                saved = place / f"saved-{shards}"
                saved.mkdir()
                shutil.copy(source / "config.json", saved)
                save(saved, original, shards)
                run(program, "import", "--hf", saved, "--out", place / "again.h5")
                lines = differences(parameters_of(place / "again.h5"), original)
                wrong += [f"{model}: {shards} shards: {line}" for line in lines]
    print("\n".join(wrong) if wrong else f"check_safetensors: {len(MODELS)} models, both ways, equal")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
