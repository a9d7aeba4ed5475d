// Text format to plain values and back. The walk over the file is RunConfigText's, so that every
// problem has its line; what must hold of the values is cluster_check's.
#include "launch/cluster_profile.hpp"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/text_format.h>

#include <cmath>
#include <fstream>
#include <iterator>

#include "configs/cluster.pb.h"
#include "launch/cluster_check.hpp"

namespace coppice {
namespace {

namespace pb = google::protobuf;
using config::Cluster;

// Fields of Rates by their size: at_64 is 64.
std::int64_t size_of_field(const pb::FieldDescriptor& field) {
  return std::stoll(field.name().substr(3));
}

RateBySize rates_of(const config::Rates& rates) {
  RateBySize by_size;
  const auto& fields = *rates.GetDescriptor();
  for (int i = 0; i < fields.field_count(); ++i)
    if (rates.GetReflection()->HasField(rates, fields.field(i)))
      by_size.points.emplace_back(size_of_field(*fields.field(i)),
                                  rates.GetReflection()->GetDouble(rates, fields.field(i)));
  return by_size;
}

void put(const RateBySize& by_size, config::Rates& rates) {
  const auto& fields = *rates.GetDescriptor();
  for (const auto& [size, rate] : by_size.points)
    for (int i = 0; i < fields.field_count(); ++i)
      if (size_of_field(*fields.field(i)) == size)
        rates.GetReflection()->SetDouble(&rates, fields.field(i), rate);
}

LinkRates plain(const config::Link& link) {
  return {
      .bandwidth = link.bandwidth(),
      .reduce_bandwidth = link.has_reduce_bandwidth() ? link.reduce_bandwidth() : link.bandwidth(),
      .latency = link.latency_seconds()};
}

void put(const LinkRates& rates, config::Link& link) {
  link.set_bandwidth(rates.bandwidth);
  link.set_reduce_bandwidth(rates.reduce_bandwidth);
  link.set_latency_seconds(rates.latency);
}

ClusterProfile plain(const Cluster& cluster) {
  ClusterProfile profile;
  profile.name = cluster.name();
  profile.measured = cluster.origin() == Cluster::MEASURED;
  profile.note = cluster.note();
  profile.nodes = cluster.nodes();
  profile.ranks_per_node = cluster.ranks_per_node();
  const auto& device = cluster.device();
  profile.kind =
      device.kind() == config::ClusterDevice::CUDA ? DeviceKind::kCuda : DeviceKind::kCpu;
  profile.peak_flops = device.peak_flops();
  profile.memory_bandwidth = device.memory_bandwidth();
  profile.memory_bytes = device.memory_bytes();
  profile.reserved_bytes = device.reserved_bytes();
  profile.threads = static_cast<int>(device.threads());
  const auto& gemm = cluster.gemm();
  profile.gemm_forward = rates_of(gemm.forward());
  profile.gemm_input_gradient =
      rates_of(gemm.has_input_gradient() ? gemm.input_gradient() : gemm.forward());
  profile.gemm_weight_gradient =
      rates_of(gemm.has_weight_gradient() ? gemm.weight_gradient() : gemm.forward());
  profile.call_seconds = gemm.call_seconds();
  profile.attention_forward = rates_of(cluster.attention().forward());
  profile.attention_backward = rates_of(cluster.attention().backward());
  profile.extra_keys = cluster.attention().extra_keys();
  profile.range_seconds = cluster.attention().range_seconds();
  const auto& memory = cluster.memory();
  profile.memory = {.rms_norm = memory.rms_norm(),
                    .rope = memory.rope(),
                    .swiglu = memory.swiglu(),
                    .rows = memory.rows(),
                    .logits = memory.logits(),
                    .adamw = memory.adamw(),
                    .grad_norm = memory.grad_norm()};
  profile.within_node = plain(cluster.within_node());
  profile.between_nodes = plain(cluster.between_nodes());
  profile.layer_overlap = cluster.overlap().layers();
  profile.gradient_overlap = cluster.overlap().gradients();
  return profile;
}

}  // namespace

double RateBySize::at(double size) const {
  const auto& [smallest, first] = points.front();
  if (size <= static_cast<double>(smallest)) return first * size / static_cast<double>(smallest);
  for (std::size_t i = 1; i < points.size(); ++i) {
    const auto& [low, low_rate] = points[i - 1];
    const auto& [high, high_rate] = points[i];
    if (size > static_cast<double>(high)) continue;
    const double place = std::log(size / static_cast<double>(low)) /
                         std::log(static_cast<double>(high) / static_cast<double>(low));
    return low_rate * std::pow(high_rate / low_rate, place);
  }
  return points.back().second;
}

ClusterProfile parse_cluster(const std::string& name, const std::string& content) {
  Cluster cluster;
  Problems problems;
  RunConfigText text(cluster, problems, "a cluster");
  text.read(name, content);
  check_cluster(cluster, text);
  problems.throw_if_any<ConfigError>();
  return plain(cluster);
}

ClusterProfile load_cluster(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::error_code error;
  if (!file || std::filesystem::is_directory(path, error))
    throw ConfigError({fmt::format(
        "{}: cannot be read as a cluster. Name a text file with --cluster.", path.string())});
  return parse_cluster(path.string(), std::string(std::istreambuf_iterator<char>(file), {}));
}

std::string text_of(const ClusterProfile& profile) {
  Cluster cluster;
  cluster.set_name(profile.name);
  cluster.set_origin(profile.measured ? Cluster::MEASURED : Cluster::DATA_SHEET);
  if (!profile.note.empty()) cluster.set_note(profile.note);
  cluster.set_nodes(profile.nodes);
  cluster.set_ranks_per_node(profile.ranks_per_node);
  auto& device = *cluster.mutable_device();
  device.set_kind(profile.kind == DeviceKind::kCuda ? config::ClusterDevice::CUDA
                                                    : config::ClusterDevice::CPU);
  device.set_peak_flops(profile.peak_flops);
  device.set_memory_bandwidth(profile.memory_bandwidth);
  device.set_memory_bytes(profile.memory_bytes);
  device.set_reserved_bytes(profile.reserved_bytes);
  device.set_threads(profile.threads);
  auto& gemm = *cluster.mutable_gemm();
  put(profile.gemm_forward, *gemm.mutable_forward());
  put(profile.gemm_input_gradient, *gemm.mutable_input_gradient());
  put(profile.gemm_weight_gradient, *gemm.mutable_weight_gradient());
  gemm.set_call_seconds(profile.call_seconds);
  auto& attention = *cluster.mutable_attention();
  put(profile.attention_forward, *attention.mutable_forward());
  put(profile.attention_backward, *attention.mutable_backward());
  attention.set_extra_keys(profile.extra_keys);
  attention.set_range_seconds(profile.range_seconds);
  auto& memory = *cluster.mutable_memory();
  memory.set_rms_norm(profile.memory.rms_norm);
  memory.set_rope(profile.memory.rope);
  memory.set_swiglu(profile.memory.swiglu);
  memory.set_rows(profile.memory.rows);
  memory.set_logits(profile.memory.logits);
  memory.set_adamw(profile.memory.adamw);
  memory.set_grad_norm(profile.memory.grad_norm);
  if (profile.within_node.bandwidth > 0) put(profile.within_node, *cluster.mutable_within_node());
  if (profile.between_nodes.bandwidth > 0)
    put(profile.between_nodes, *cluster.mutable_between_nodes());
  cluster.mutable_overlap()->set_layers(profile.layer_overlap);
  cluster.mutable_overlap()->set_gradients(profile.gradient_overlap);
  pb::TextFormat::Printer printer;
  printer.SetUseUtf8StringEscaping(true);
  std::string text;
  printer.PrintToString(cluster, &text);
  return text;
}

}  // namespace coppice
