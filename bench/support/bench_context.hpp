#pragma once
// A CPU context for benches, and tensors with numbers in them (denormals and zeros would lie).
#include <benchmark/benchmark.h>
#include <omp.h>

#include "core/exec_context.hpp"
#include "core/rng.hpp"
#include "core/tensor.hpp"

namespace coppice::bench {

struct BenchContext {
  Memory memory{Device{}};
  Stream stream{Device{}};
  Arena scratch{memory, "scratch"};
  ExecContext ctx{stream, memory, scratch, omp_get_max_threads()};

  Tensor random(Shape shape, float scale = 1.0f) {
    Tensor tensor(memory, DType::kF32, shape, "bench");
    const RandomStream stream_of_numbers(1, "bench");
    float* data = tensor.view().data<float>();
    for (std::int64_t i = 0; i < shape.numel(); ++i) {
      data[i] = scale *
                static_cast<float>(stream_of_numbers.normal(static_cast<std::uint64_t>(i % 65536)));
    }
    return tensor;
  }
};

/// Shapes of SmolLM2-135M, with the packed rows of P=512, R=64, G=8.
namespace smollm2 {
inline constexpr std::int64_t kTokens = 1024, kHeadRows = 505, kHidden = 576, kIntermediate = 1536,
                              kHeads = 9, kKeyValueHeads = 3, kHeadDim = 64, kVocabulary = 49152;
}

}  // namespace coppice::bench
