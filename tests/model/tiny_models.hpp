#pragma once
// Tiny models of every family with random weights, groups of tokens, and the two packings of them,
// for tests of the whole model.
#include <map>
#include <memory>
#include <optional>

#include "model/policy_model.hpp"
#include "reference/naive_model.hpp"
#include "support/test_context.hpp"

namespace coppice::test {

using Tokens = std::vector<std::int32_t>;

struct TinyResponse {
  Tokens ids;
  std::vector<std::uint8_t> loss_mask{};  // empty: all learn
};
struct TinyGroup {
  Tokens prompt;
  std::vector<TinyResponse> responses;
};

struct TinyCase {
  std::string family;  // "Llama", "Qwen2", "Qwen3", "Mistral"
  bool tied;
  std::int64_t heads = 4, kv_heads = 2, head_dim = 6;
  std::int64_t vocab_size = 61;
  std::int64_t hidden = 24;
  std::string name() const { return family + (tied ? "Tied" : "Untied"); }
};
void PrintTo(const TinyCase& tiny, std::ostream* out);

/// Every family, tied and untied, with heads to key-value heads 2, 1, 3 and 4.
std::vector<TinyCase> all_tiny_cases();
ModelConfig config_of(const TinyCase& tiny);

/// A model on one rank with everything it stands on. Weights are random by name, rounded to f32,
/// so that f32 and f64 models are the same model.
class TinyModel {
 public:
  TinyModel(const ModelConfig& config, DType dtype, int threads = 1,
            WithGradients gradients = WithGradients::kYes);
  TinyModel(const ModelConfig& config, const Backend& backend, int threads = 1,
            WithGradients gradients = WithGradients::kYes);

  PolicyModel& operator*() { return model_; }
  PolicyModel* operator->() { return &model_; }
  ExecContext& ctx() { return context_.ctx(); }
  Memory& memory() { return context_.memory(); }
  /// The same model for the reference.
  reference::NaiveModel naive();
  /// Gradients of logical tensors by Hugging Face name.
  std::map<std::string, std::vector<double>> gradients();
  std::map<std::string, std::vector<double>> weights();
  void set_weight(const std::string& name, std::size_t element, double value);
  void set_weights(const std::map<std::string, std::vector<double>>& weights);

 private:
  void put(Parameter& parameter, const ParameterPart& part, const std::vector<double>& values);

  TestContext context_;
  std::unique_ptr<Communicator> self_ = make_self_communicator();
  ParallelContext parallel_{*self_, *self_, *self_};
  PolicyModel model_;
};

PackedBatch grouped(const std::vector<TinyGroup>& groups);
PackedBatch repeated(const std::vector<TinyGroup>& groups);

/// Log-probs, entropies and gradients of one pass; statistics by (group, response, offset).
struct PassResult {
  using Key = std::array<std::int32_t, 3>;
  std::map<Key, double> logprobs, entropies;
  std::map<std::string, std::vector<double>> gradients;
};

/// c and e of an edge: random, the same whatever the packing.
std::pair<double, double> coefficients_of(const PredictionEdge& edge);

struct PassOptions {
  Recompute recompute = Recompute::kNone;
  double temperature = 1.0;
  bool fused = true;
  /// Instead of coefficients_of.
  std::function<std::pair<double, double>(const PredictionEdge&)> coefficients{};
};
/// One pass from zero gradients.
PassResult run_pass(TinyModel& model, const PackedBatch& batch, const PassOptions& options = {});

/// A few groups with hard shapes: empty and one-token responses, equal first tokens, a prompt of
/// one token, ragged lengths, masked tokens.
std::vector<TinyGroup> hard_groups(std::int64_t vocab_size);

}  // namespace coppice::test
