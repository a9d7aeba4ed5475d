#pragma once
// From the tensors of a Hugging Face directory to those a model takes: what is missing, surplus or
// of another shape is told all at once, and the few names that others write without need are passed
// over. Their values are then read straight into a model, whole or sharded. Which tensors a model
// takes is told by the caller.
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

/// Fills every `local` with its rectangle of the weight "/parameters/<name>", converted to its
/// dtype as a model file would be that holds the weights in their types. Reads the bytes of the
/// rectangles; of narrow columns, whose rows lie within a page or two of each other, also what is
/// between.
///
/// Memory    a block of a few MiB
/// Errors    IoError; ContractError for a name that is none of the weights', or another shape
/// Oracle    tests/ranks/hf_weights_test.cpp: against the way through a model file
void read_hf_weights(std::span<const HfWeight> weights, std::span<const StateTensor> wanted);

}  // namespace coppice
