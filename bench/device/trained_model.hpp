#pragma once
// A model with random weights in training on a device, as the benches of whole steps need it: times
// of a pass and of an update, and log-probs to hold one packing against another. Losses are the
// plainest there are; what a real loss adds is the host's and small.
#include <memory>
#include <string>
#include <vector>

#include "device/device_run.hpp"
#include "model/policy_model.hpp"
#include "optim/adamw.hpp"
#include "support/packed_groups.hpp"

namespace coppice::bench {

/// config.json of a model's layers, without weights.
struct ModelShape {
  std::string name;
  std::string family;  ///< "Llama", "Qwen3"
  std::int64_t hidden, intermediate, heads, kv_heads, head_dim, vocab;
  bool tied = false;

  ModelConfig config(std::int64_t layers) const;
};

struct StepSeconds {
  double pass = 0;    ///< forward and backward
  double update = 0;  ///< gradient norm and AdamW
};

/// The least recomputation with which a training pass over each of the batches fits into nine
/// tenths of the device beside 18 bytes per parameter (value, gradient, master, two moments).
Recompute recompute_that_fits(const ModelConfig& config, std::int64_t device_bytes,
                              const std::vector<const PackedBatch*>& batches);
std::string_view name_of(Recompute recompute);

class TrainedModel {
 public:
  explicit TrainedModel(const ModelConfig& config);

  const ModelConfig& config() const { return model_.config(); }
  /// Median times, by the device's clock.
  ///
  /// Errors    throws where a log-prob or the gradient's norm is not finite
  StepSeconds time(const PackedBatch& batch, Recompute recompute, double sample);
  /// Log-probs of the batch's edges, sorted by group, response and offset.
  std::vector<double> logprobs(const PackedBatch& batch);
  std::int64_t peak_bytes() const { return run_.memory.peak_bytes(); }

 private:
  void pass(const PackedBatch& batch, Recompute recompute);
  double update();

  DeviceRun run_;
  std::unique_ptr<Communicator> self_ = make_self_communicator();
  PolicyModel model_;
  std::unique_ptr<AdamW> adamw_;
  std::vector<double> logprobs_;
};

/// How far two packings' log-probs of the same tokens are apart.
struct Apart {
  double rms = 0, most = 0, bound = 0;
};
/// Errors    throws where they are further apart than bf16 explains, not finite, or nowhere near
///           those of random weights
Apart check_apart(const ModelConfig& config, const std::vector<double>& a,
                  const std::vector<double>& b);

}  // namespace coppice::bench
