// Cluster files: what is refused and how it is said, rates between sizes, and the shipped files.
#include "launch/cluster_profile.hpp"

#include <gmock/gmock.h>

namespace coppice::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::string kGood = R"(name: "two cores"
origin: MEASURED
ranks_per_node: 2
device { kind: CPU peak_flops: 200e9 memory_bandwidth: 20e9 memory_bytes: 8e9 threads: 2 }
gemm { forward { at_64: 50e9 at_256: 100e9 } }
attention { forward { at_64: 80e9 } backward { at_64: 60e9 } }
memory { rms_norm: 1e9 rope: 2e9 swiglu: 3e9 rows: 4e9 logits: 5e9 adamw: 6e9 grad_norm: 7e9 }
within_node { bandwidth: 4e9 latency_seconds: 2e-6 }
)";

std::vector<std::string> problems(const std::string& text) {
  try {
    parse_cluster("c.textproto", text);
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

TEST(ClusterFile, IsReadWithItsDefaults) {
  const ClusterProfile cluster = parse_cluster("c.textproto", kGood);
  EXPECT_EQ(cluster.name, "two cores");
  EXPECT_TRUE(cluster.measured);
  EXPECT_EQ(cluster.nodes, 1);
  EXPECT_EQ(cluster.ranks(), 2);
  EXPECT_EQ(cluster.threads, 2);
  EXPECT_EQ(cluster.dtype(), DType::kF32);
  EXPECT_EQ(cluster.gemm_weight_gradient.points, cluster.gemm_forward.points);
  EXPECT_EQ(cluster.within_node.reduce_bandwidth, 4e9);
  EXPECT_EQ(cluster.layer_overlap, 0);
  EXPECT_EQ(cluster.memory.grad_norm, 7e9);
}

// In logarithms 128 lies half way between 64 and 256, so its rate between 50 and 100 is their
// geometric mean.
TEST(ClusterFile, GivesRatesBetweenSizesBelowAndAbove) {
  const RateBySize rates = parse_cluster("c.textproto", kGood).gemm_forward;
  EXPECT_DOUBLE_EQ(rates.at(64), 50e9);
  EXPECT_NEAR(rates.at(128), std::sqrt(50e9 * 100e9), 1);
  EXPECT_DOUBLE_EQ(rates.at(256), 100e9);
  EXPECT_DOUBLE_EQ(rates.at(5000), 100e9);
  EXPECT_DOUBLE_EQ(rates.at(16), 12.5e9);
}

TEST(ClusterFile, ReadsBackAsItWasWritten) {
  ClusterProfile cluster = parse_cluster("c.textproto", kGood);
  cluster.layer_overlap = 0.25;
  cluster.call_seconds = 1e-6;
  const ClusterProfile again = parse_cluster("again", text_of(cluster));
  EXPECT_EQ(text_of(again), text_of(cluster));
  EXPECT_EQ(again.layer_overlap, 0.25);
  EXPECT_EQ(again.call_seconds, 1e-6);
}

TEST(ClusterFile, NamesEveryProblemByLineAndField) {
  const std::string text = R"(name: "x"
origin: GUESSED
nodes: 0
ranks_per_node: 8
device { kind: CUDA peak_flops: 989e12 memory_bandwidth: -1 memory_bytes: 80e9 reserved_bytes: 90e9 }
gemm { forward { at_1024: 1979e12 } call_seconds: -1 colour: 3 }
attention { forward { at_64: 1e12 } }
memory { rms_norm: 1e9 rope: 2e9 swiglu: 3e9 rows: 0 logits: 5e9 adamw: 6e9 }
overlap { layers: 1.5 }
)";
  EXPECT_THAT(
      problems(text),
      ElementsAre(
          HasSubstr("c.textproto:2:1: origin: GUESSED is not one of DATA_SHEET, MEASURED."),
          HasSubstr("c.textproto:6:54: gemm.colour: no such field. Fields of gemm: forward,"),
          HasSubstr("c.textproto:3:1: nodes: 0 is not in [1, 1048576]."),
          HasSubstr(
              "c.textproto:5:40: device.memory_bandwidth: -1 is not a finite number above 0."),
          HasSubstr("device.reserved_bytes: 90000000000 leaves nothing of memory_bytes"),
          HasSubstr("c.textproto:6:18: gemm.forward.at_1024: 1.979e+15 is above "
                    "device.peak_flops = 9.89e+14"),
          HasSubstr("gemm.call_seconds: -1 is not a finite number of 0 or more."),
          HasSubstr("c.textproto: attention.backward: missing."),
          HasSubstr("c.textproto:8:46: memory.rows: 0 is not a finite number above 0."),
          HasSubstr("c.textproto: memory.grad_norm: missing."),
          HasSubstr("c.textproto: within_node.bandwidth: missing."),
          HasSubstr("c.textproto:9:11: overlap.layers: 1.5 is not in [0, 1]")));
  EXPECT_THAT(problems("name: \"x\" volume: 11"),
              testing::Contains(HasSubstr("volume: no such field. Fields of a cluster: name,")));
}

// The figures of the data sheets; achieved rates are assumptions and said to be.
TEST(ClusterFile, ShipsNodesOfEightGpusWithTheirDataSheets) {
  for (const auto& [file, bandwidth, memory] :
       {std::tuple{"h100_8", 3.35e12, 80e9}, {"h200_8", 4.8e12, 141e9}}) {
    const ClusterProfile cluster =
        load_cluster(std::string(COPPICE_SOURCE_DIR) + "/configs/clusters/" + file + ".textproto");
    EXPECT_FALSE(cluster.measured);
    EXPECT_THAT(cluster.note, HasSubstr("assumptions, not measured"));
    EXPECT_EQ(cluster.kind, DeviceKind::kCuda);
    EXPECT_EQ(cluster.ranks(), 8);
    EXPECT_EQ(cluster.peak_flops, 989e12);  // not the sparse 1979e12
    EXPECT_EQ(cluster.memory_bandwidth, bandwidth);
    EXPECT_EQ(cluster.memory_bytes, memory);
    EXPECT_LE(cluster.within_node.bandwidth, 450e9);
    EXPECT_LE(cluster.between_nodes.bandwidth, 50e9);
  }
}

TEST(ClusterFile, ThatCannotBeReadIsRefused) {
  EXPECT_THROW(load_cluster("no/such/file"), ConfigError);
}

}  // namespace
}  // namespace coppice::test
