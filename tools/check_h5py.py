#!/usr/bin/env python3
"""Checks that h5py reads what the program writes, and the program what h5py writes.

A golden model of each type is imported and looked at with h5py by docs/checkpoint_format.md:
tensors equal the safetensors source bit for bit, and the checksums are those of the page's numpy
lines. Then the same model is written by h5py alone, with and without checksums, and exported by the
program.

    "$(tools/venv light)/bin/python" tools/check_h5py.py build/release/launch/coppice

Exit status: 0 equal, 1 not.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np
from safetensors import safe_open

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("llama_tied", "mistral_sharded", "qwen2_tied_bf16", "llama_linear_f16")


def checksum(elements: np.ndarray) -> int:
    """As on the page, for elements seen as unsigned numbers."""
    index = np.arange(1, elements.size + 1, dtype="u8")
    z = elements.reshape(-1).astype("u8") + index * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((z ^ (z >> np.uint64(31))).sum(dtype="u8"))


def bits_of(dataset: h5py.Dataset) -> np.ndarray:
    """The stored elements as unsigned numbers; texts as bytes."""
    if h5py.check_string_dtype(dataset.dtype):
        return np.frombuffer(dataset[()], dtype="u1")
    return dataset[()].view(f"u{dataset.dtype.itemsize}")


def source_tensors(directory: Path) -> dict[str, tuple[str, np.ndarray]]:
    """name -> (type, bits) from the safetensors files, read as raw bytes."""
    import json

    tensors = {}
    for path in sorted(directory.glob("model*.safetensors")):
        raw = path.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        for name, entry in json.loads(raw[8 : 8 + length]).items():
            if name == "__metadata__":
                continue
            begin, end = entry["data_offsets"]
            data = np.frombuffer(raw[8 + length + begin : 8 + length + end], dtype="u1")
            width = {"F32": 4, "BF16": 2, "F16": 2}[entry["dtype"]]
            tensors[name] = (entry["dtype"], data.view(f"<u{width}").reshape(entry["shape"]))
    return tensors


def run(*arguments: object) -> str:
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, arguments))} failed:\n{done.stderr}")
    return done.stderr


def read_with_h5py(path: Path, source: Path) -> list[str]:
    tensors, wrong = source_tensors(source), []
    with h5py.File(path) as file:
        if file.attrs["kind"].decode() != "model" or file.attrs["coppice_format"] != 1:
            wrong.append(f"root attributes {dict(file.attrs)}")
        if file["config/model"].asstr()[()] != (source / "config.json").read_text():
            wrong.append("config/model is not config.json")
        if set(file["parameters"]) != set(tensors):
            wrong.append(f"names {sorted(set(file['parameters']) ^ set(tensors))}")
        for name, (dtype, bits) in tensors.items():
            dataset = file["parameters"][name]
            expected = {"F32": "float32", "F16": "float16", "BF16": "uint16"}[dtype]
            if dataset.dtype != expected or (dtype == "BF16") != ("dtype" in dataset.attrs):
                wrong.append(f"{name} has type {dataset.dtype}, attributes {dict(dataset.attrs)}")
            if not np.array_equal(bits_of(dataset), bits):
                wrong.append(f"{name} has other values")
        sums = file["checksums"].attrs
        names = [f"/parameters/{name}" for name in tensors] + ["/config/model"]
        if set(sums) != set(names):
            wrong.append(f"checksums of {sorted(set(sums) ^ set(names))}")
        for name in names:
            if int(sums[name]) != checksum(bits_of(file[name])):
                wrong.append(f"checksum of {name}")
    return wrong


def write_with_h5py(path: Path, source: Path, with_checksums: bool) -> None:
    tensors = source_tensors(source)
    with h5py.File(path, "w") as file:
        file.attrs["coppice_format"] = 1
        file.attrs["kind"] = "model"
        file["config/model"] = (source / "config.json").read_text()
        for name, (dtype, bits) in tensors.items():
            view = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[dtype]
            file[f"parameters/{name}"] = bits.view(view)
            if dtype == "BF16":
                file[f"parameters/{name}"].attrs["dtype"] = "bf16"
        if with_checksums:
            sums = file.create_group("checksums").attrs
            for name in tensors:
                sums[f"/parameters/{name}"] = np.uint64(checksum(tensors[name][1]))
            text = np.frombuffer((source / "config.json").read_bytes(), dtype="u1")
            sums["/config/model"] = np.uint64(checksum(text))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("program", type=Path, help="the built coppice")
    program = parser.parse_args().program
    wrong = []
    for model in MODELS:
        source = ROOT / "tests" / "golden" / model
        with tempfile.TemporaryDirectory() as name:
            place = Path(name)
            run(program, "import", "--hf", source, "--out", place / "m.h5")
            wrong += [f"{model}: {line}" for line in read_with_h5py(place / "m.h5", source)]
            for with_checksums in (False, True):
                write_with_h5py(place / "py.h5", source, with_checksums)
                out = place / f"hf{with_checksums}"
                said = run(program, "export", "--checkpoint", place / "py.h5", "--out", out)
                if ("no checksums" in said) == with_checksums:
                    wrong.append(f"{model}: notice with checksums={with_checksums}: {said}")
                exported, original = source_tensors(out), source_tensors(source)
                same = exported.keys() == original.keys() and all(
                    exported[n][0] == dtype and np.array_equal(exported[n][1], bits)
                    for n, (dtype, bits) in original.items()
                )
                if not same:
                    wrong.append(f"{model}: written by h5py, exported otherwise")
                with safe_open(out / "model.safetensors", framework="np") as opened:
                    if opened.metadata() != {"format": "pt"}:
                        wrong.append(f"{model}: metadata {opened.metadata()}")
    print("\n".join(wrong) if wrong else f"check_h5py: {len(MODELS)} models, both ways, equal")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
