#pragma once
// From the tensors of a Hugging Face directory to those a model takes: what is missing, surplus or
// of another shape is told all at once, and the few names that others write without need are passed
// over. Which tensors a model takes is told by the caller.
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "checkpoint/safetensors.hpp"
#include "core/error.hpp"

namespace coppice {

/// Whether the head is the embedding (tie_word_embeddings).
enum class TiedHead { kNo, kYes };

struct HfWeight {
  std::string name;
  DType dtype;
  Shape shape;
  SafetensorsModel::Source source;
};

/// The expected tensors in their order; incomplete where `problems` grew, each beginning with
/// `place`.
///
///   Passed over: rotary_emb.inv_freq (computed here), and lm_head.weight under a tied head if it
///   is the embedding bit for bit. One that differs is refused: transformers would drop it unsaid.
std::vector<HfWeight> match_hf_weights(const SafetensorsModel& model,
                                       std::span<const ExpectedTensor> expected, TiedHead tied,
                                       const std::string& place, Problems& problems);

}  // namespace coppice
