#pragma once
// One attention problem on a device, timed as the model runs it (columns of one fused matrix), and
// held against sums in double of some of its rows and keys. Who sees whom is worked out here from
// the groups' lengths, not from the plan under test.
#include <string>
#include <vector>

#include "attention/prefix_attention.hpp"
#include "device/device_run.hpp"

namespace coppice::bench {

/// `groups` prefixes, each with `group_size` responses behind it; with group_size 0 plain
/// sequences.
struct AttentionShape {
  std::int64_t prefix, response, group_size, groups;
  std::int64_t heads, kv_heads, dim;

  std::int64_t rows_of_group() const { return prefix + group_size * response; }
  std::int64_t rows() const { return groups * rows_of_group(); }
};

class AttentionProblem {
 public:
  AttentionProblem(DeviceRun& run, const AttentionShape& shape);

  void forward();
  void backward();
  /// 4 Hq D per visible pair forward; backward does 2.5 times as many, as peers count it.
  double forward_flops() const;
  double backward_flops() const { return 2.5 * forward_flops(); }
  std::int64_t visible_pairs() const { return plan_.visible_pairs(); }

  /// Runs both and checks some rows and keys of the first, a middle and the last head.
  ///
  /// Errors    throws where something is not finite, or further off than bf16 explains
  void check();

 private:
  struct HeadResult;
  std::vector<std::int64_t> seen_by(std::int64_t row) const;
  std::vector<std::int64_t> seeing(std::int64_t key) const;
  // D elements each.
  const double* q(std::int64_t row, std::int64_t head) const;
  const double* k(std::int64_t row, std::int64_t kv_head) const;
  const double* v(std::int64_t row, std::int64_t kv_head) const;
  const double* d_out(std::int64_t row, std::int64_t head) const;
  double score(std::int64_t row, std::int64_t key, std::int64_t head) const;
  HeadResult fetch(std::int64_t head);
  void check_row(const HeadResult& result, std::int64_t row) const;
  void check_key(const std::vector<HeadResult>& results, std::int64_t key) const;

  DeviceRun& run_;
  AttentionShape shape_;
  AttentionPlan plan_;
  double scale_;
  Numbers qkv_numbers_{1, 1.0}, d_out_numbers_{2, 1.0};
  Tensor qkv_, dqkv_, out_, d_out_, lse_;
  ConstTensorView q_;
  TensorView dq_;
  KeySpace space_;
  KeySpaceGrad grad_;
};

}  // namespace coppice::bench
