"""What launch/device_check can do: its parts in order, the programs of each, and how long each may take.

The programs are named as in a build folder. The limits are for a machine of 16 cores with an H200;
together they stay below TOTAL_SECONDS. What a part costs was reckoned with 300 TFLOP/s of products and
150 of attention: tests 60 s, attention 15 s, products 10 s, training 60 s, DualKV's workload 40 s.
"""
from dataclasses import dataclass, field, replace

TOTAL_SECONDS = 535  # under 9 minutes with the start and the last report
BENCH = "bench/device_bench"


@dataclass(frozen=True)
class Job:
    """One program of a part."""
    kind: str  # "tests", "ranks" or "bench"
    program: str
    arguments: tuple[str, ...] = ()  # of tests and ranks: the filter of cases
    ranks: int = 1
    when_emulated: tuple[str, ...] | None = None  # fewer cases: launch/test runs all of them


@dataclass(frozen=True)
class Part:
    name: str
    says: str
    limit: int  # seconds
    jobs: list[Job] = field(default_factory=list)


def tests(program: str, cases: str = "*Cuda*") -> Job:
    return Job("tests", program, (cases,))


def bench(name: str) -> Job:
    return Job("bench", BENCH, (name,))


def two_ranks(axis: str) -> Job:
    # A failure ends both ranks, so each axis has processes of its own.
    return Job("ranks", "tests/ranks/device_ranks_test", (f"*TwoRanksCuda*/{axis}",), 2,
               when_emulated=(f"*TwoRanksCuda.Err*/{axis}",))


PARTS = [
    Part("conformance", "each wrapper of an instruction against its rule, which the emulator keeps too",
         40, [tests("tests/core/device_wrappers_test", "*")]),
    Part("ops", "every op on CUDA against the CPU, or plain double code", 110, [
        tests("tests/attention/attention_cuda_test", "*"),
        tests("tests/layers/layers_cuda_test", "*"),
        tests("tests/layers/layers_test"),
        tests("tests/core/core_test"),
        tests("tests/optim/optim_test"),
        tests("tests/parallel/parallel_test"),
        tests("tests/model/model_test"),
    ]),
    Part("step", "a whole training step of a tiny model against a plain model in double", 60,
         [Job("tests", "tests/rl/rl_cuda_test", ("*",), when_emulated=("*Errs*Grouped",))]),
    Part("staged", "training steps of two ranks on one device, through the host, along every axis", 60,
         [two_ranks(axis) for axis in ("Tensor", "Sequence", "Context", "Data")]),
    Part("attention", "attention's rate, forward and backward, plain and grouped", 60,
         [bench("attention")]),
    Part("gemm", "the rate of matrix products", 40, [bench("gemm")]),
    Part("train", "training steps of SmolLM2 and of 8B layer shapes, grouped and repeated", 130,
         [bench("train")]),
    Part("dualkv", "the workload of DualKV's paper, grouped and repeated", 100, [bench("dualkv")]),
]


def parts(emulated: bool) -> list[Part]:
    if not emulated:
        return PARTS
    return [replace(part, jobs=[replace(job, arguments=job.when_emulated or job.arguments)
                                for job in part.jobs]) for part in PARTS]
