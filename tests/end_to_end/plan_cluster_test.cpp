// `coppice plan --cluster` and `coppice calibrate`, through the program.
#include "end_to_end/tiny_run.hpp"

namespace coppice::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class PlanOnCluster : public TinyRun {
 protected:
  Outcome plan_on(const std::string& cluster, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {"plan", "--config", "run.textproto", "--cluster",
                                          cluster};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return coppice(arguments);
  }
  static std::string shipped(const std::string& name) {
    return std::string(COPPICE_SOURCE_DIR) + "/configs/clusters/" + name + ".textproto";
  }
};

TEST_F(PlanOnCluster, CalibratesThisMachineAndPredictsAStepOnItInKeysThatHelpLists) {
  const auto measured = coppice({"calibrate", "--out", "here.textproto", "--seconds", "1",
                                 "--threads", "1", "--name", "two cores"});
  ASSERT_EQ(measured.status, 0) << measured.err;
  const auto outcome = plan_on("here.textproto", {"--json"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const auto planned = nlohmann::json::parse(outcome.out);
  const auto& cluster = planned.at("cluster");
  EXPECT_EQ(cluster["name"], "two cores");
  EXPECT_EQ(cluster["origin"], "MEASURED");
  EXPECT_EQ(planned["threads_per_rank"], 1);
  EXPECT_GT(cluster["step_seconds"], 0.0);
  EXPECT_LE(cluster["mfu"], 1.0);
  EXPECT_EQ(cluster["grids"].size(), 1u);
  double sum = 0;
  for (const auto& [phase, seconds] : cluster["seconds"].items()) sum += seconds.get<double>();
  EXPECT_NEAR(sum, cluster["step_seconds"].get<double>(), 1e-9);
  EXPECT_THAT(plan_on("here.textproto").out,
              AllOf(HasSubstr("from rates measured there"), HasSubstr("grids of 1 ranks")));

  const auto help = coppice({"plan", "--help"}).out;
  for (const auto& [key, value] : cluster.items()) {
    EXPECT_THAT(help, HasSubstr(key));
    if (!value.is_object()) continue;
    for (const auto& [inner, figure] : value.items()) EXPECT_THAT(help, HasSubstr(inner));
  }
  for (const auto& [key, value] : cluster["grids"][0].items()) EXPECT_THAT(help, HasSubstr(key));
}

// A model of 8 billion weights that are not there, on machines that are not either.
TEST_F(PlanOnCluster, PlansShapesWithoutWeightsAndSaysThatNothingWasMeasured) {
  const std::string shape = std::string(COPPICE_SOURCE_DIR) + "/tests/launch/shapes/llama3_8b.json";
  const auto outcome = plan_on(shipped("h200_8"), {"--hf-config", shape, "--ranks", "8"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("8030261248 parameters in bf16"), HasSubstr("nothing was measured"),
                    HasSubstr("grids of 8 ranks"), HasSubstr("8 x 1 x 1")));
}

TEST_F(PlanOnCluster, NamesWhatIsWrongWithBothFiles) {
  write_file(dir_ / "bad.textproto", "name: \"x\"\nspeed: 3\n");
  const auto outcome = plan_on("bad.textproto", {"--set", "data.epochs=0"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("data.epochs=0: 0 is too small"),
                                 HasSubstr("bad.textproto:2:1: speed: no such field. Fields of a "
                                           "cluster: name, origin,"),
                                 HasSubstr("bad.textproto: device.peak_flops: missing.")));
  EXPECT_THAT(plan_on(shipped("h100_8"), {"--ranks", "16"}).err,
              HasSubstr("head_dim = "));  // of the tiny model, which CUDA has no kernel for
  EXPECT_THAT(coppice({"plan", "--config", "run.textproto", "--ranks", "4"}).err,
              HasSubstr("Give --cluster too."));
  EXPECT_THAT(plan_on(shipped("h100_8"), {"--set", "numerics.precision=F64"}).err,
              HasSubstr("Use BF16."));
}

}  // namespace
}  // namespace coppice::test
