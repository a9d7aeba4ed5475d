"""The cases of the golden files: which tiny model, which rollouts, which loss.

Everything here is data and seeded random numbers; tools/make_golden.py runs it. Numbers are small
on purpose (an odd vocabulary, fewer KV heads than heads, ragged responses), and config.json is
spelled in turn as older and as newer versions of transformers write it, since both are in use.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from golden_loss import Loss, Optimizer

Json = dict[str, Any]


@dataclass(frozen=True)
class Case:
    name: str
    about: str
    config: Json
    loss: Loss
    optimizer: Optimizer = field(default_factory=Optimizer)
    stored: str = "F32"  # F32, BF16 or F16: the type of the tensors in the model's files
    shards: int = 1
    prompt_lengths: tuple[int, int] = (5, 1)
    old_logprobs: bool = True
    ref_logprobs: bool = True
    given_advantages: bool = False  # per-token advantages for the second group
    zero_std_group: bool = False  # a third group whose rewards are all equal
    far_old_logprob: bool = False  # one log-ratio beyond the clamp at 20


def base(model_type: str, architecture: str, **fields: Any) -> Json:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "max_position_embeddings": 256,
        "num_hidden_layers": 2,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": 61,
        "attention_dropout": 0.0,
        **fields,
    }


def llama(**fields: Any) -> Json:
    shape = {
        "hidden_size": 24,
        "intermediate_size": 28,
        "num_attention_heads": 3,
        "num_key_value_heads": 1,
        "attention_bias": False,
        "mlp_bias": False,
        "pretraining_tp": 1,
    }
    return base("llama", "LlamaForCausalLM", **(shape | fields))


def llama_rope(**fields: Any) -> Json:
    """Eight rotary frequencies, so that each formula's bands are all inhabited."""
    shape = {
        "hidden_size": 32,
        "intermediate_size": 20,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "tie_word_embeddings": True,
    }
    return llama(**(shape | fields))


def qwen2(**fields: Any) -> Json:
    """As real Qwen2 files are: a sliding window is named and switched off; biases are implied."""
    shape = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "sliding_window": 128,
        "use_sliding_window": False,
        "max_window_layers": 2,
    }
    return base("qwen2", "Qwen2ForCausalLM", **(shape | fields))


def qwen3(**fields: Any) -> Json:
    """head_dim is not hidden_size / num_attention_heads."""
    shape = {
        "hidden_size": 20,
        "intermediate_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "attention_bias": False,
        "rms_norm_eps": 1e-6,
        "sliding_window": None,
        "use_sliding_window": False,
        "max_window_layers": 2,
    }
    return base("qwen3", "Qwen3ForCausalLM", **(shape | fields))


def mistral(**fields: Any) -> Json:
    shape = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "sliding_window": None,
    }
    return base("mistral", "MistralForCausalLM", **(shape | fields))


def old_spelling(
    dtype: str = "float32", theta: float = 10000.0, scaling: Json | None = None
) -> Json:
    return {"torch_dtype": dtype, "rope_theta": theta, "rope_scaling": scaling}


def new_spelling(dtype: str = "float32", theta: float = 10000.0, **rope: Any) -> Json:
    return {"dtype": dtype, "rope_parameters": {"rope_theta": theta, "rope_type": "default"} | rope}


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

CASES = (
    Case(
        "llama_untied",
        "GRPO with k3, old spelling without head_dim",
        llama(**old_spelling()),
        Loss(kind="GRPO", kl_estimator="K3", kl_coef=0.1),
        zero_std_group=True,
    ),
    Case(
        "llama_tied",
        "GRPO on policy: no old log-probs, ratio 1; several steps; weight decay",
        llama(tie_word_embeddings=True, head_dim=8, **new_spelling()),
        Loss(kind="GRPO", entropy_coef=0.02),
        Optimizer(weight_decay=0.1, max_grad_norm=0.0),
        old_logprobs=False,
        ref_logprobs=False,
    ),
    Case(
        "qwen2_untied",
        "DAPO with k2 and per-token advantages; biases; clipped gradients",
        qwen2(**old_spelling(theta=1000000.0)),
        Loss(kind="DAPO", kl_estimator="K2", kl_coef=0.05),
        Optimizer(max_grad_norm=0.05),
        given_advantages=True,
    ),
    Case(
        "qwen2_tied_bf16",
        "Dr. GRPO with dual clip; weights stored as bf16; warm-up and cosine",
        qwen2(tie_word_embeddings=True, **old_spelling("bfloat16")),
        Loss(kind="DR_GRPO", dual_clip=1.2, max_response_length=8),
        Optimizer(schedule="COSINE", warmup_steps=1, total_steps=4),
        stored="BF16",
    ),
    Case(
        "qwen3_untied",
        "GRPO with k1 and an entropy bonus; q/k norms; head_dim 8 at hidden 20",
        qwen3(**new_spelling(theta=1000000.0)),
        Loss(kind="GRPO", kl_estimator="K1", kl_coef=0.1, entropy_coef=0.01),
        zero_std_group=True,
        far_old_logprob=True,
    ),
    Case(
        "qwen3_tied",
        "DAPO at temperature 0.7, truncated responses masked, linear schedule",
        qwen3(tie_word_embeddings=True, **old_spelling()),
        Loss(kind="DAPO", temperature=0.7, mask_truncated=True, kl_coef=0.02),
        Optimizer(schedule="LINEAR", total_steps=4),
    ),
    Case(
        "mistral_sharded",
        "SFT; two files with an index; sliding_window null",
        mistral(**old_spelling()),
        Loss(kind="SFT"),
        shards=2,
    ),
    Case(
        "llama_linear_f16",
        "linear rotary scaling, spelled `type`; weights stored as f16",
        llama_rope(**old_spelling("float16", scaling={"type": "linear", "factor": 4.0})),
        Loss(kind="GRPO", kl_estimator="K3", kl_coef=0.05),
        stored="F16",
        prompt_lengths=(70, 1),
    ),
    Case(
        "llama_llama3",
        "llama3 rotary scaling, old spelling",
        llama_rope(**old_spelling(scaling={"rope_type": "llama3", **LLAMA3})),
        Loss(kind="DAPO"),
        prompt_lengths=(90, 2),
    ),
    Case(
        "llama_yarn",
        "yarn rotary scaling with its attention factor inferred, new spelling",
        llama_rope(
            **new_spelling(rope_type="yarn", factor=4.0, original_max_position_embeddings=64)
        ),
        Loss(kind="GRPO", clip_low=0.1, clip_high=0.3, aggregation="TOKEN_MEAN"),
        prompt_lengths=(90, 2),
    ),
    Case(
        "qwen3_yarn_mscale",
        "yarn with mscale fields, betas and an untruncated ramp, old spelling",
        qwen3(
            tie_word_embeddings=True,
            head_dim=16,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=65536,
            **old_spelling(
                scaling={
                    "rope_type": "yarn",
                    "factor": 16.0,
                    "original_max_position_embeddings": 4096,
                    "beta_fast": 24,
                    "beta_slow": 2,
                    "mscale": 1.3,
                    "mscale_all_dim": 0.7,
                    "truncate": False,
                }
            ),
        ),
        Loss(kind="DR_GRPO", max_response_length=16, normalization="STD", epsilon=1e-4),
        prompt_lengths=(70, 1),
    ),
    Case(
        "llama_yarn_factor",
        "yarn with an attention factor given",
        llama_rope(
            max_position_embeddings=1024,
            **new_spelling(
                rope_type="yarn",
                factor=2.0,
                attention_factor=0.9,
                original_max_position_embeddings=512,
            ),
        ),
        Loss(kind="GRPO"),
        ref_logprobs=False,
        prompt_lengths=(70, 1),
    ),
    Case(
        "mistral_tied",
        "tied embeddings; new spelling",
        mistral(tie_word_embeddings=True, **new_spelling()),
        Loss(kind="GRPO", kl_estimator="K2", kl_coef=0.1),
    ),
)


def random_weight(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """f32; of a size that makes attention and predictions uneven and every parameter matter."""
    draw = rng.standard_normal(shape)
    if name.endswith("norm.weight"):
        draw = 1.0 + 0.2 * draw
    elif name.endswith("bias"):
        draw = 0.3 * draw
    elif "embed_tokens" in name or "lm_head" in name:
        draw = 1.5 * draw / np.sqrt(shape[1])
    else:
        draw = 1.2 * draw / np.sqrt(shape[1])
    return draw.astype(np.float32)


def draw_ids(rng: np.random.Generator, count: int, vocab_size: int) -> list[int]:
    """Any id of the vocabulary; ids that often mean bos, eos or padding occur as plain tokens."""
    ids = rng.integers(0, vocab_size, count)
    return [int(rng.integers(0, 3)) if rng.random() < 0.15 else int(i) for i in ids]


def draw_groups(case: Case, rng: np.random.Generator) -> list[Json]:
    """Groups in the rollout schema, still without old and ref log-probs.

    g0: five ragged responses, one empty, one of a single token, one with holes in its mask, one
    truncated; those with tokens begin with the same one. g1: three responses, the last all masked.
    """
    vocab = case.config["vocab_size"]
    first = int(rng.integers(0, vocab))
    groups: list[Json] = [
        {
            "group": "g0",
            "prompt_ids": draw_ids(rng, case.prompt_lengths[0], vocab),
            "responses": [
                {
                    "ids": [first] + draw_ids(rng, 5, vocab),
                    "reward": 1.0,
                    "loss_mask": [1, 1, 0, 0, 1, 1],
                },
                {"ids": [], "reward": 0.0},
                {"ids": [first], "reward": 0.25},
                {"ids": [first] + draw_ids(rng, 6, vocab), "reward": -0.5, "truncated": True},
                {"ids": [first] * 3, "reward": 0.25, "truncated": False},
            ],
        },
        {
            "group": "g1",
            "prompt_ids": draw_ids(rng, case.prompt_lengths[1], vocab),
            "responses": [
                {"ids": draw_ids(rng, 4, vocab), "reward": 0.0, "loss_mask": [0, 1, 1, 0]},
                {"ids": draw_ids(rng, 9, vocab), "reward": 2.0},
                {"ids": draw_ids(rng, 2, vocab), "reward": 0.5},
            ],
        },
    ]
    if case.given_advantages:
        for response in groups[1]["responses"]:
            mask = response.get("loss_mask", [1] * len(response["ids"]))
            draws = np.round(rng.standard_normal(len(mask)), 3)
            response["advantages"] = [
                float(a) if m else None for a, m in zip(draws, mask, strict=True)
            ]
    else:
        groups[1]["responses"][2]["loss_mask"] = [0, 0]
    if case.zero_std_group:
        responses = [{"ids": draw_ids(rng, n, vocab), "reward": 0.3} for n in (3, 2)]
        groups.append(
            {"group": "same rewards", "prompt_ids": draw_ids(rng, 3, vocab), "responses": responses}
        )
    return groups
