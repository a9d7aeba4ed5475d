#pragma once
// The parts of a checkpoint as they are handed over: everything but the tensors, and rectangles of
// tensors. How they are written and read is checkpoint.hpp's business.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/stream.hpp"
#include "core/tensor.hpp"
#include "parallel/shard.hpp"

namespace coppice {

enum class CheckpointKind {
  kModel,       ///< weights only, each in its source type
  kCheckpoint,  ///< master weights in f32 (f64 with keep_precision), moments, the trainer's state
};

/// A file that travels along as bytes, e.g. tokenizer.json.
struct AttachedFile {
  std::string name, bytes;
};

/// Numbers of the trainer beside its JSON, e.g. the old log-probs of a batch in flight.
struct TrainerArray {
  std::string name;
  std::vector<double> values;
};

/// Everything in the file but the tensors.
struct CheckpointHeader {
  CheckpointKind kind = CheckpointKind::kModel;
  std::int64_t step = 0;            ///< attempted steps
  std::int64_t optimizer_step = 0;  ///< applied updates; written with a kCheckpoint
  std::string program_version;      ///< set by the writer where empty
  std::string model_config_json;    ///< Hugging Face config.json as imported
  std::string run_config_textproto;
  std::string trainer_json;  ///< the trainer's own state, opaque here
  std::vector<TrainerArray> trainer_arrays;
  std::vector<AttachedFile> tokenizer;
};

/// One rectangle of one logical tensor, and the memory that holds it.
struct StateTensor {
  std::string dataset;  ///< "/parameters/model.norm.weight", "/optimizer/exp_avg/..."
  Shard shard;
  TensorView local;  ///< contiguous, shape = shard.local_shape
  Stream* stream = nullptr;  ///< where `local` is a device's: what changes it is ordered there
};

/// What a file says of one dataset.
struct StoredTensor {
  std::string dataset;
  DType dtype;
  Shape shape;
  std::optional<std::uint64_t> checksum;
};

/// A name and a shape that a model asks for.
struct ExpectedTensor {
  std::string name;  ///< Hugging Face name, without "/parameters/"
  Shape shape;
};

}  // namespace coppice
