#pragma once
// A tiny model as one rank of a grid holds it, filled by logical tensor and element so that every
// grid has the same model, and its logical tensors put together again from all ranks.
#include <map>
#include <string>
#include <vector>

#include "model/policy_model.hpp"
#include "model/tiny_models.hpp"
#include "parallel/gradient_reducer.hpp"
#include "parallel/process_grid.hpp"
#include "support/test_context.hpp"

namespace coppice::test {

using NamedTensors = std::map<std::string, std::vector<double>>;

/// Which model: wide enough for eight tensor ranks, and nothing more.
struct GridModelCase {
  const char* family;
  bool tied;
  std::int64_t kv_heads;  // of eight heads
  std::int64_t vocab_size;
  std::string name() const {
    return std::string(family) + (tied ? "Tied" : "Untied") + std::to_string(kv_heads) +
           "KeyValueHeads";
  }
};

inline ModelConfig config_of(const GridModelCase& which) {
  TinyCase tiny{which.family, which.tied};
  tiny.heads = 8;
  tiny.kv_heads = which.kv_heads;
  tiny.vocab_size = which.vocab_size;
  ModelConfig config = config_of(tiny);
  config.intermediate_size = 40;
  return config;
}

inline int key_value_sharers(const ModelConfig& config, int tensor) {
  return std::max(1, tensor / static_cast<int>(config.num_key_value_heads));
}

class GridModel {
 public:
  GridModel(const ModelConfig& config, ProcessGrid& grid, DType dtype)
      : grid_(grid),
        model_(config, grid.parallel(), dtype, context_.memory(), WithGradients::kYes) {
    for (Parameter* parameter : model_.parameters()) {
      for_each(*parameter, [&](const ParameterPart& part, std::int64_t row, std::int64_t column,
                               std::int64_t element) {
        const RandomStream stream(7, part.name);
        const bool norm = part.name.ends_with("norm.weight");
        const double value =
            (norm ? 1.0 : 0.0) +
            (norm ? 0.2 : 0.3) * stream.normal(static_cast<std::uint64_t>(element));
        set(parameter->value, row, column, static_cast<float>(value));
      });
    }
  }

  PolicyModel& operator*() { return model_; }
  PolicyModel* operator->() { return &model_; }
  ExecContext& ctx() { return context_.ctx(); }

  NamedTensors values() { return logical(&Parameter::value, {}); }
  /// The rows of `share` are whole on this rank.
  NamedTensors gradients(RowShare share) { return logical(&Parameter::grad, share); }

 private:
  /// visit(part, row of the parameter, column, element of the logical tensor)
  template <class Visit>
  static void for_each(Parameter& parameter, Visit&& visit) {
    for (const ParameterPart& part : parameter.parts) {
      const Shard& shard = part.shard;
      const bool matrix = shard.global_shape.rank() == 2;
      const auto columns = matrix ? shard.local_shape[1] : 1;
      for (std::int64_t row = 0; row < shard.local_shape[0]; ++row) {
        for (std::int64_t column = 0; column < columns; ++column) {
          const auto element = matrix ? (shard.global_offset[0] + row) * shard.global_shape[1] +
                                            shard.global_offset[1] + column
                                      : shard.global_offset[0] + row;
          visit(part, part.row_begin + row, column, element);
        }
      }
    }
  }
  static void set(Tensor& tensor, std::int64_t row, std::int64_t column, double value) {
    const auto at = row * tensor.view().strides()[0] + column;
    visit_float(tensor.dtype(),
                [&]<class T>(TypeTag<T>) { tensor.view().data<T>()[at] = static_cast<T>(value); });
  }

  /// Every element from the one rank that speaks for it, all of them on every rank.
  NamedTensors logical(Tensor Parameter::*what, RowShare share) {
    NamedTensors tensors;
    for (Parameter* parameter : model_.parameters()) {
      for (const ParameterPart& part : parameter->parts) {
        tensors[part.name].assign(static_cast<std::size_t>(part.shard.global_shape.numel()), 0.0);
      }
      const auto values = values_of((parameter->*what).view());
      const RowRange owned = share.of(*parameter);
      const auto stride = (parameter->*what).view().strides()[0];
      for_each(*parameter, [&](const ParameterPart& part, std::int64_t row, std::int64_t column,
                               std::int64_t element) {
        const bool speaks = part.is_primary && row >= owned.begin && row < owned.end;
        if (speaks) {
          tensors[part.name][static_cast<std::size_t>(element)] =
              values[static_cast<std::size_t>(row * stride + column)];
        }
      });
    }
    const bool everybody_holds_all = share.size == 1;
    Communicator& ranks = everybody_holds_all ? grid_.tensor() : grid_.world();
    for (auto& [name, values] : tensors) {
      ranks.all_reduce(ctx().stream, host_view(values.data(), Shape{std::ssize(values)}),
                       ReduceOp::kSum);
    }
    return tensors;
  }

  ProcessGrid& grid_;
  TestContext context_{1};
  PolicyModel model_;
};

}  // namespace coppice::test
