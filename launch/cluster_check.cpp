#include "launch/cluster_check.hpp"

#include <google/protobuf/descriptor.h>

#include <cmath>

#include "configs/cluster.pb.h"

namespace coppice {
namespace {

using config::Cluster;

constexpr double kMostRanks = 1 << 20;

class Checker {
 public:
  Checker(const Cluster& cluster, RunConfigText& text) : cluster_(cluster), text_(text) {}

  void check() {
    required("name", cluster_.has_name() && !cluster_.name().empty());
    required("origin", cluster_.has_origin());
    count("nodes", cluster_.nodes());
    if (required("ranks_per_node", cluster_.has_ranks_per_node()))
      count("ranks_per_node", cluster_.ranks_per_node());
    check_device();
    check_rates();
    check_memory();
    check_links();
    share("overlap.layers", cluster_.overlap().layers());
    share("overlap.gradients", cluster_.overlap().gradients());
  }

 private:
  template <class... Args>
  void problem(const std::string& path, fmt::format_string<Args...> format, Args&&... args) {
    text_.add_problem(path, fmt::format(format, std::forward<Args>(args)...));
  }
  // A field that was given with a refused value has been reported already.
  bool required(const std::string& path, bool is_there) {
    if (!is_there && !text_.given(path)) problem(path, "missing. Give it a value.");
    return is_there;
  }
  void positive(const std::string& path, double value) {
    if (!std::isfinite(value) || value <= 0)
      problem(path, "{} is not a finite number above 0.", value);
  }
  void not_negative(const std::string& path, double value) {
    if (!std::isfinite(value) || value < 0)
      problem(path, "{} is not a finite number of 0 or more.", value);
  }
  void share(const std::string& path, double value) {
    if (!(value >= 0 && value <= 1))
      problem(path, "{} is not in [0, 1] (it is a share of time).", value);
  }
  void count(const std::string& path, std::int64_t value) {
    if (value < 1 || static_cast<double>(value) > kMostRanks)
      problem(path, "{} is not in [1, {}]. Give a number that there may be.", value,
              static_cast<std::int64_t>(kMostRanks));
  }

  void check_device() {
    const auto& device = cluster_.device();
    required("device.kind", device.has_kind());
    if (required("device.peak_flops", device.has_peak_flops()))
      positive("device.peak_flops", device.peak_flops());
    if (required("device.memory_bandwidth", device.has_memory_bandwidth()))
      positive("device.memory_bandwidth", device.memory_bandwidth());
    if (required("device.memory_bytes", device.has_memory_bytes()))
      positive("device.memory_bytes", device.memory_bytes());
    not_negative("device.reserved_bytes", device.reserved_bytes());
    if (device.reserved_bytes() >= device.memory_bytes() && device.memory_bytes() > 0)
      problem("device.reserved_bytes", "{} leaves nothing of memory_bytes = {}. Use less.",
              device.reserved_bytes(), device.memory_bytes());
    if (device.threads() < 1 || device.threads() > 1024)
      problem("device.threads", "{} is not in [1, 1024].", device.threads());
  }

  void check_rates() {
    rates("gemm.forward", cluster_.gemm().forward(), true);
    rates("gemm.input_gradient", cluster_.gemm().input_gradient(), false);
    rates("gemm.weight_gradient", cluster_.gemm().weight_gradient(), false);
    not_negative("gemm.call_seconds", cluster_.gemm().call_seconds());
    rates("attention.forward", cluster_.attention().forward(), true);
    rates("attention.backward", cluster_.attention().backward(), true);
    not_negative("attention.extra_keys", cluster_.attention().extra_keys());
    not_negative("attention.range_seconds", cluster_.attention().range_seconds());
  }
  void rates(const std::string& path, const config::Rates& rates, bool needed) {
    const auto& fields = *rates.GetDescriptor();
    const double peak = cluster_.device().peak_flops();
    bool any = false;
    for (int i = 0; i < fields.field_count(); ++i) {
      const auto& field = *fields.field(i);
      const std::string place = path + "." + field.name();
      any = any || text_.given(place);
      if (!rates.GetReflection()->HasField(rates, &field)) continue;
      const double rate = rates.GetReflection()->GetDouble(rates, &field);
      positive(place, rate);
      if (peak > 0 && rate > peak)
        problem(place,
                "{:g} is above device.peak_flops = {:g} (nothing runs faster than the device; the "
                "sparse figure of a data sheet is not its dense one). Give a rate that is "
                "achieved.",
                rate, peak);
    }
    if (needed && !any) problem(path, "missing. Give at least one rate, such as at_1024.");
  }

  void check_memory() {
    const auto& memory = cluster_.memory();
    const auto& fields = *memory.GetDescriptor();
    for (int i = 0; i < fields.field_count(); ++i) {
      const auto& field = *fields.field(i);
      const std::string path = "memory." + field.name();
      if (required(path, memory.GetReflection()->HasField(memory, &field)))
        positive(path, memory.GetReflection()->GetDouble(memory, &field));
    }
  }

  void check_links() {
    link("within_node", cluster_.within_node(), cluster_.ranks_per_node() > 1);
    link("between_nodes", cluster_.between_nodes(), cluster_.nodes() > 1);
  }
  void link(const std::string& path, const config::Link& link, bool needed) {
    if (link.has_bandwidth() || (needed && required(path + ".bandwidth", false)))
      positive(path + ".bandwidth", link.bandwidth());
    if (link.has_reduce_bandwidth()) positive(path + ".reduce_bandwidth", link.reduce_bandwidth());
    not_negative(path + ".latency_seconds", link.latency_seconds());
  }

  const Cluster& cluster_;
  RunConfigText& text_;
};

}  // namespace

void check_cluster(const config::Cluster& cluster, RunConfigText& text) {
  Checker(cluster, text).check();
}

}  // namespace coppice
