#!/usr/bin/env python3
"""Makes the golden files under tests/golden/ from transformers in double precision.

Every response is run alone: prompt + response, batch of one, no padding, no packing, no cache. The
loss is a plain torch expression (golden_loss.py), its gradients come from autograd, the updates
from torch.optim.AdamW. The cases are listed in golden_cases.py. Run it with the torch environment:

    "$(tools/venv torch)/bin/python" tools/make_golden.py            all cases, into tests/golden
    "$(tools/venv torch)/bin/python" tools/make_golden.py --check    compare with what is committed

A rerun on the same machine reproduces the files byte for byte; on another kind of CPU the last bits
of doubles may differ, which --check allows for (relative L2 1e-12 per tensor).

transformers computes rotary angles, RMSNorm and softmax in f32 even in an f64 model. Here its
modules see a `torch` whose float32 is float64 (DoubleTorch), so its own formulas run in double
throughout.

Layout of tests/golden/<case>/
  config.json            Hugging Face config, in the old or the new spelling
  model.safetensors      weights in the stored type (F32, BF16, F16); or several numbered
                         files and their index. Tied models have no lm_head.weight.
  rollouts.jsonl         the rollout schema of the project; old and ref log-probs are at the loss's
                         temperature; where loss_mask is 0 they hold null or garbage
  run.textproto          the run config's loss, advantage, optimizer and data blocks; with model,
                         run_dir, data.rollouts and precision F64 added it is a whole run of 3 steps
  expected.json          case, about, run (the same blocks as JSON, every field resolved), steps (3
                         objects with a step's metrics; `grouped` and `repeated` hold rows,
                         visible_pairs, edge_rows, executed_flops), versions
  expected.safetensors   all F64
    logprobs.<g>.<r>       [n] log-probs of the tokens of group g, response r (counted from 0) at
    entropies.<g>.<r>      [n]   temperature 1 and the initial weights; empty responses have [0]
    grad.<HF name>         gradient of step 1's loss before clipping; a tied embedding has the sum
    weights_after.<HF name>  after 3 AdamW steps from f64 weights that started as the stored values
A step takes all groups of the file. A case without old log-probs is on policy in every step.
"""

import argparse
import json
import math
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, modeling_rope_utils
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

from golden_cases import CASES, Case, Json, draw_groups, random_weight
from golden_loss import (
    Response,
    clip_gradients,
    learning_rate,
    loss_and_metrics,
    make_adamw,
)

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
STEPS = 3
STORED = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
GARBAGE = (None, 1e38, -1e38, 0.0)


class DoubleTorch(ModuleType):
    """torch, but whoever asks it for float32 gets float64."""

    float = torch.float64
    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def patch_transformers_to_double() -> None:
    modules = (modeling_llama, modeling_mistral, modeling_qwen2, modeling_qwen3)
    for module in (*modules, modeling_rope_utils):
        module.torch = DoubleTorch("torch")


def load_double(directory: Path) -> torch.nn.Module:
    """The model of a case's files, in f64; config.json and the safetensors decide all."""
    config = AutoConfig.from_pretrained(directory)
    config.dtype = torch.float64
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").double().eval()
    tensors = {k: v for f in directory.glob("*.safetensors") for k, v in load_file(f).items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    tied = ["lm_head.weight"] if config.tie_word_embeddings else []
    assert missing == tied and not unexpected, (missing, unexpected)
    cos, _ = model.model.rotary_emb(torch.zeros(1, dtype=torch.float64), torch.arange(3)[None])
    assert model.model.rotary_emb.inv_freq.dtype == cos.dtype == torch.float64
    return model


def score(
    model: torch.nn.Module, prompt: list[int], ids: list[int], temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies of one response's tokens, run alone."""
    if not ids:
        return torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.float64)
    logits = model(torch.tensor([prompt + ids]), use_cache=False).logits[0]
    assert logits.dtype == torch.float64
    logp = torch.log_softmax(logits[len(prompt) - 1 : -1] / temperature, dim=-1)
    chosen = logp.gather(1, torch.tensor(ids)[:, None])[:, 0]
    return chosen, -(logp.exp() * logp).sum(dim=-1)


def write_model(case: Case, directory: Path, rng: np.random.Generator) -> None:
    (directory / "config.json").write_text(json.dumps(case.config, indent=2) + "\n")
    shapes = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory)).state_dict()
    if case.config["tie_word_embeddings"]:
        del shapes["lm_head.weight"]
    tensors = {
        name: torch.from_numpy(random_weight(name, tuple(value.shape), rng)).to(STORED[case.stored])
        for name, value in shapes.items()
    }
    if case.shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(case.shards):
        file = f"model-{shard + 1:05d}-of-{case.shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[shard :: case.shards]}
        weight_map |= dict.fromkeys(part, file)
        save_file(part, directory / file, metadata={"format": "pt"})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def add_logprobs(
    case: Case, model: torch.nn.Module, groups: list[Json], rng: np.random.Generator
) -> None:
    """Old and ref log-probs a little away from the model's, rounded; garbage where mask is 0."""
    fields = {"old_logprobs": (case.old_logprobs, 0.2), "ref_logprobs": (case.ref_logprobs, 0.4)}
    for group in groups:
        for response in group["responses"]:
            ids = response["ids"]
            with torch.inference_mode():
                current, _ = score(model, group["prompt_ids"], ids, case.loss.temperature)
            mask = response.get("loss_mask", [1] * len(ids))
            for name, (wanted, spread) in fields.items():
                noise = spread * rng.standard_normal(len(ids))
                values = [min(float(x), -1e-3) for x in np.round(current.numpy() + noise, 5)]
                if wanted:
                    response[name] = [
                        v if m else GARBAGE[t % len(GARBAGE)]
                        for t, (v, m) in enumerate(zip(values, mask, strict=True))
                    ]
    if case.far_old_logprob:  # where A > 0, so that it is clipped and does not drown the rest
        groups[0]["responses"][0]["old_logprobs"][5] = -60.0


def run_blocks(case: Case, groups: int) -> Json:
    """The run config's blocks with every default resolved, by their names in the schema."""
    loss, optimizer = case.loss, case.optimizer
    blocks: Json = {
        "loss": {
            "kind": loss.kind,
            "clip_low": loss.clip_low,
            "clip_high": loss.resolved_clip_high(),
            "dual_clip": loss.dual_clip,
            "kl_estimator": loss.kl_estimator,
            "kl_coef": loss.kl_coef,
            "entropy_coef": loss.entropy_coef,
            "aggregation": loss.resolved_aggregation(),
            "temperature": loss.temperature,
            "updates_per_batch": 1,
            "max_response_length": loss.max_response_length,
            "mask_truncated": loss.mask_truncated,
        },
        "advantage": {"normalization": loss.resolved_normalization(), "epsilon": loss.epsilon},
        "optimizer": {"kind": "ADAMW", **asdict(optimizer)},
        "data": {"groups_per_step": groups, "epochs": STEPS, "shuffle": False},
    }
    if loss.kind == "SFT":
        del blocks["advantage"]
        for name in ("clip_low", "clip_high", "dual_clip", "kl_estimator"):
            del blocks["loss"][name]
    return {k: {n: v for n, v in b.items() if v is not None} for k, b in blocks.items()}


def textproto(blocks: Json) -> str:
    enums = ("kind", "kl_estimator", "aggregation", "normalization", "schedule")

    def value(name: str, v: Any) -> str:
        return v if name in enums else json.dumps(v)

    body = (
        f"{block} {{\n" + "".join(f"  {n}: {value(n, v)}\n" for n, v in fields.items()) + "}\n"
        for block, fields in blocks.items()
    )
    return "# Made by tools/make_golden.py.\n" + "".join(body)


def masked_responses(case: Case, group: Json) -> Iterator[tuple[Json, list[int]]]:
    """Each response with the mask that the loss sees."""
    for response in group["responses"]:
        mask = response.get("loss_mask", [1] * len(response["ids"]))
        dropped = case.loss.mask_truncated and response.get("truncated", False)
        yield response, [0] * len(mask) if dropped else mask


def counts(case: Case, config: transformers.PretrainedConfig, groups: list[Json]) -> Json:
    """Rows, pairs and FLOPs of one step, counted by writing the visible rows down."""
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    kv_heads, hidden = config.num_key_value_heads, config.hidden_size
    linear = layers * (
        hidden * head_dim * (2 * heads + 2 * kv_heads) + 3 * hidden * config.intermediate_size
    )
    result: Json = {}
    for sharing in ("grouped", "repeated"):
        rows = pairs = edge_rows = 0
        for group in groups:
            prompt = len(group["prompt_ids"])
            with_edges: set[tuple[int, int]] = (
                set()
            )  # (path, row of the path); shared rows have path -1
            if sharing == "grouped":
                rows += prompt
                pairs += sum(p + 1 for p in range(prompt))
            for path, (response, mask) in enumerate(masked_responses(case, group)):
                length = len(response["ids"])
                start = prompt if sharing == "grouped" else 0
                rows += prompt + length - start
                pairs += sum(p + 1 for p in range(start, prompt + length))
                at = [prompt - 1 + t for t, m in enumerate(mask) if m]
                with_edges |= {(-1 if p < start else path, p) for p in at}
            edge_rows += len(with_edges)
        flops = 2 * linear * rows + 4 * heads * head_dim * layers * pairs
        flops += 2 * config.vocab_size * hidden * edge_rows
        result[sharing] = {
            "rows": rows,
            "visible_pairs": pairs,
            "edge_rows": edge_rows,
            "executed_flops": 3 * flops,
        }
    return result


def responses_for_loss(
    case: Case, model: torch.nn.Module, groups: list[Json]
) -> list[list[Response]]:
    result: list[list[Response]] = []
    for group in groups:
        result.append([])
        for response, mask in masked_responses(case, group):
            logprobs, entropies = score(
                model, group["prompt_ids"], response["ids"], case.loss.temperature
            )
            result[-1].append(
                Response(
                    mask=mask,
                    reward=response["reward"],
                    old=response.get("old_logprobs"),
                    ref=response.get("ref_logprobs"),
                    advantages=response.get("advantages"),
                    truncated=response.get("truncated", False),
                    logprobs=logprobs,
                    entropies=entropies,
                )
            )
    return result


def write_expected(case: Case, model: torch.nn.Module, groups: list[Json], directory: Path) -> None:
    tensors: dict[str, torch.Tensor] = {}
    with torch.inference_mode():
        for g, group in enumerate(groups):
            for r, response in enumerate(group["responses"]):
                scores = score(model, group["prompt_ids"], response["ids"], 1.0)
                tensors[f"logprobs.{g}.{r}"], tensors[f"entropies.{g}.{r}"] = scores

    optimizer = make_adamw(model, case.optimizer)
    steps: list[Json] = []
    for step in range(1, STEPS + 1):
        model.zero_grad()
        loss, metrics = loss_and_metrics(responses_for_loss(case, model, groups), case.loss)
        loss.backward()
        if step == 1:
            for name, parameter in model.named_parameters():
                tensors[f"grad.{name}"] = parameter.grad.clone()
        rate = learning_rate(case.optimizer, step, case.optimizer.total_steps or STEPS)
        for parameter_group in optimizer.param_groups:
            parameter_group["lr"] = rate
        norm = clip_gradients(model, case.optimizer.max_grad_norm)
        optimizer.step()
        steps.append({"step": step, **metrics, "grad_norm": norm, "learning_rate": rate})
        assert all(math.isfinite(v) for v in steps[-1].values())
        steps[-1] |= counts(case, model.config, groups)
    for name, parameter in model.named_parameters():
        tensors[f"weights_after.{name}"] = parameter.detach().clone()
    save_file(tensors, directory / "expected.safetensors")

    expected = {
        "case": case.name,
        "about": case.about,
        "run": run_blocks(case, len(groups)),
        "steps": steps,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    (directory / "expected.json").write_text(json.dumps(expected, indent=2) + "\n")


def make_case(case: Case, seed: int, directory: Path) -> None:
    directory.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    write_model(case, directory, rng)
    model = load_double(directory)
    groups = draw_groups(case, rng)
    add_logprobs(case, model, groups, rng)
    lines = "".join(json.dumps(group) + "\n" for group in groups)
    (directory / "rollouts.jsonl").write_text(lines)
    (directory / "run.textproto").write_text(textproto(run_blocks(case, len(groups))))
    write_expected(case, model, groups, directory)
    for file in directory.iterdir():
        file.chmod(0o644)


def differences(made: Path, committed: Path) -> Iterator[str]:
    """What differs between two directories of a case beyond the last bits of doubles."""
    names = {f.name for d in (made, committed) if d.exists() for f in d.iterdir()}
    for name in sorted(names):
        ours, theirs = made / name, committed / name
        if not (ours.exists() and theirs.exists()):
            yield f"{name}: only in {'the new' if ours.exists() else 'the committed'} files"
        elif name == "expected.safetensors":
            new, old = load_file(ours), load_file(theirs)
            if new.keys() != old.keys():
                yield f"{name}: other tensors"
                continue
            for key, value in new.items():
                bound = 1e-12 * max(float(value.norm()), 1e-3)
                if value.shape != old[key].shape or float((value - old[key]).norm()) > bound:
                    yield f"{name}: {key}"
        elif name == "expected.json":
            new, old = json.loads(ours.read_text()), json.loads(theirs.read_text())
            for key in ("case", "about", "run"):
                if new[key] != old[key]:
                    yield f"{name}: {key}"
            for mine, other in zip(new["steps"], old["steps"], strict=True):
                for key, value in mine.items():
                    close = isinstance(value, float) and math.isclose(
                        value, other[key], rel_tol=1e-9
                    )
                    if not close and value != other[key]:
                        yield f"{name}: step {mine['step']} {key}"
        elif ours.read_bytes() != theirs.read_bytes():
            yield f"{name}: other bytes"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", help="names of cases; all when none is given")
    parser.add_argument("--out", type=Path, default=GOLDEN, help="default: tests/golden")
    parser.add_argument("--check", action="store_true", help="change nothing; report differences")
    options = parser.parse_args()
    unknown = set(options.cases) - {case.name for case in CASES}
    if unknown:
        parser.error(f"unknown cases {sorted(unknown)}; there are {[c.name for c in CASES]}")

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    patch_transformers_to_double()
    status = 0
    for seed, case in enumerate(CASES):
        if options.cases and case.name not in options.cases:
            continue
        options.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=options.out, suffix=".tmp") as scratch:
            made, target = Path(scratch) / case.name, options.out / case.name
            make_case(case, seed, made)
            if options.check:
                found = list(differences(made, target))
                status |= bool(found)
                print(f"{case.name}: {'; '.join(found) or 'as committed'}")
                continue
            shutil.rmtree(target, ignore_errors=True)
            made.rename(target)
        print(f"wrote {target}")
    return status


if __name__ == "__main__":
    sys.exit(main())
