#!/usr/bin/env python3
"""Checks that transformers loads exported Hugging Face directories and sees the original models in
them.

Both directories of a pair are loaded with AutoModelForCausalLM: no weight may be missing or left over, the
configs must agree (their dtype aside), and the logits on a few seeded random tokens must be equal
bit for bit, or within --tolerance (relative L2) where the export has another type or other weights
on purpose. Where the original has a tokenizer, the export must have it too and split a sentence
alike.

    "$(tools/venv torch)/bin/python" tools/check_transformers_loads.py EXPORTED ORIGINAL [EXPORTED ORIGINAL ...]

Exit status: 0 equal, 1 not, 2 a directory that cannot be loaded.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

SENTENCE = "What is 7+5? The answer: \u00fcber 12.\n"
FREE_CONFIG_KEYS = (
    "dtype",
    "torch_dtype",
    "_name_or_path",
    "transformers_version",
    "architectures",
)


def load(directory: Path) -> torch.nn.Module:
    if not (directory / "config.json").is_file():
        print(f"{directory} holds no config.json", file=sys.stderr)
        raise SystemExit(2)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        print(f"{directory} cannot be loaded: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    wrong = {name: sorted(info[name]) for name in ("missing_keys", "unexpected_keys") if info[name]}
    if wrong:
        print(f"{directory} does not hold exactly the model's weights: {wrong}", file=sys.stderr)
        raise SystemExit(2)
    return model.eval()


def config_differences(exported: Any, original: Any) -> list[str]:
    ours, theirs = exported.to_dict(), original.to_dict()
    keys = sorted((ours.keys() | theirs.keys()) - set(FREE_CONFIG_KEYS))
    return [
        f"config.{key}: {ours.get(key)!r} instead of {theirs.get(key)!r}"
        for key in keys
        if ours.get(key) != theirs.get(key)
    ]


@torch.inference_mode()
def logits_difference(
    exported: torch.nn.Module, original: torch.nn.Module, tokens: int, seed: int
) -> float:
    """Relative L2; exactly 0 only where every bit is equal."""
    generator = torch.Generator().manual_seed(seed)
    count = min(tokens, original.config.max_position_embeddings)
    ids = torch.randint(0, original.config.vocab_size, (1, count), generator=generator)
    ours, theirs = exported(ids).logits, original(ids).logits
    if ours.shape != theirs.shape:
        return float("inf")
    if torch.equal(ours, theirs):
        return 0.0
    return float((ours - theirs).double().norm() / theirs.double().norm())


def tokenizer_differences(exported: Path, original: Path) -> list[str]:
    if not (original / "tokenizer.json").exists():
        return []
    if not (exported / "tokenizer.json").exists():
        return ["the export has no tokenizer.json"]
    ours, theirs = (AutoTokenizer.from_pretrained(d).encode(SENTENCE) for d in (exported, original))
    return [] if ours == theirs else [f"the tokenizers split a sentence into {ours} and {theirs}"]


def problems_of(exported: Path, original: Path, options: argparse.Namespace) -> list[str]:
    ours, theirs = load(exported), load(original)
    problems = config_differences(ours.config, theirs.config)
    problems += tokenizer_differences(exported, original)
    difference = logits_difference(ours, theirs, options.tokens, options.seed)
    print(
        f"{exported.name}: relative difference of the logits: {difference:.3g} "
        f"(allowed {options.tolerance:.3g})"
    )
    if not difference <= options.tolerance:
        problems.append("the logits differ by more than allowed")
    return [f"{exported}: {problem}" for problem in problems]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "directories", type=Path, nargs="+", metavar="EXPORTED ORIGINAL", help="pairs of directories"
    )
    parser.add_argument("--tolerance", type=float, default=0.0, help="relative L2 of the logits")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if len(options.directories) % 2:
        parser.error("directories come in pairs: an export and what it was made from")

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    problems = [
        problem
        for exported, original in zip(options.directories[::2], options.directories[1::2])
        for problem in problems_of(exported, original, options)
    ]
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
