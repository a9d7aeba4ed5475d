#pragma once
// A cluster as plain values: what its devices and links can do, read from text format
// (configs/cluster.proto) or measured (cluster_calibration). What a step takes on it is
// cluster_model's business.
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/device.hpp"
#include "core/dtype.hpp"

namespace coppice {

/// FLOP/s by a size, ascending.
///
/// Units     between two sizes on the line between them in logarithms; above the largest as there,
///           below the smallest in proportion to the size
struct RateBySize {
  std::vector<std::pair<std::int64_t, double>> points;

  double at(double size) const;
};

/// A link as a rank sees it, each way.
struct LinkRates {
  double bandwidth = 0;         ///< bytes/s
  double reduce_bandwidth = 0;  ///< the same where what arrives is also added
  double latency = 0;           ///< seconds of a message
};

struct ClusterProfile {
  std::string name;
  bool measured = false;  ///< else a data sheet's figures, achieved rates being assumptions
  std::string note;
  std::int64_t nodes = 1, ranks_per_node = 1;

  DeviceKind kind = DeviceKind::kCpu;
  double peak_flops = 0;        ///< of a rank, dense, in the type computed in
  double memory_bandwidth = 0;  ///< bytes/s
  double memory_bytes = 0, reserved_bytes = 0;
  int threads = 1;

  RateBySize gemm_forward, gemm_input_gradient, gemm_weight_gradient;  ///< by smallest extent
  double call_seconds = 0;
  RateBySize attention_forward, attention_backward;  ///< by head dim
  double extra_keys = 0;
  double range_seconds = 0;
  /// Bytes/s.
  struct {
    double rms_norm = 0, rope = 0, swiglu = 0, rows = 0, logits = 0, adamw = 0, grad_norm = 0;
  } memory;
  LinkRates within_node, between_nodes;
  double layer_overlap = 0, gradient_overlap = 0;

  /// The type its devices compute in.
  DType dtype() const { return kind == DeviceKind::kCuda ? DType::kBF16 : DType::kF32; }
  std::int64_t ranks() const { return nodes * ranks_per_node; }
  double usable_bytes() const { return memory_bytes - reserved_bytes; }
};

/// Errors    ConfigError with every problem: unknown fields, missing ones, ranges, rates above the
///           peak, each with file, line, column and field path
ClusterProfile load_cluster(const std::filesystem::path& path);
/// The same from a text; `name` stands in messages.
ClusterProfile parse_cluster(const std::string& name, const std::string& text);

/// Text that reads back as this very profile.
std::string text_of(const ClusterProfile& cluster);

}  // namespace coppice
