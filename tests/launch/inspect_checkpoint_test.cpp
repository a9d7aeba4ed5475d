// inspect --tensors, --verify and --diff through the program itself.
#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.hpp"
#include "support/temporary_directory.hpp"

namespace coppice {
namespace {

using test::read_file;
using test::TemporaryDirectory;
using test::write_file;
using testing::HasSubstr;
using Json = nlohmann::json;

struct Outcome {
  int status;
  std::string out, err;
};

Outcome run(const std::string& arguments) {
  const TemporaryDirectory directory;
  const std::string command =
      fmt::format("'{}' {} >'{}' 2>'{}'", COPPICE_PROGRAM, arguments, (directory / "out").string(),
                  (directory / "err").string());
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          read_file(directory / "out"), read_file(directory / "err")};
}

// A small model with the given values of one tensor.
void write_model(const std::filesystem::path& path, DType dtype, std::vector<double> values,
                 Shape other, const std::string& extra = "more") {
  CheckpointHeader header;
  header.model_config_json = "{}";
  CheckpointWriter writer(path, header);
  const auto view = host_view(values.data(), Shape{std::ssize(values)});
  writer.write("/parameters/values", dtype, Shard::whole(view.shape()), view);
  std::vector<double> zeros(static_cast<std::size_t>(other.numel()));
  for (const std::string& name : {std::string("shaped"), extra}) {
    const auto zero = host_view(zeros.data(), other);
    writer.write("/parameters/" + name, DType::kF32, Shard::whole(other), zero);
  }
  writer.commit();
}

TEST(Inspect, VerifyComparesEveryValueWithItsChecksum) {
  const TemporaryDirectory directory;
  const std::vector<double> values{1.5, -2.25, 3.125, 1e-3};
  write_model(directory / "m.h5", DType::kF64, values, {2});
  const std::string file = (directory / "m.h5").string();
  const auto good = run(fmt::format("inspect '{}' --verify --json", file));
  ASSERT_EQ(good.status, 0) << good.err;
  EXPECT_EQ(Json::parse(good.out)["verified"], true);
  EXPECT_THAT(run("inspect --help").out, HasSubstr("verified"));
  EXPECT_FALSE(Json::parse(run(fmt::format("inspect '{}' --json", file)).out).contains("verified"));
  // One bit of a value: seen only when values are read.
  std::string bytes = read_file(directory / "m.h5");
  const auto at = bytes.find(std::string(reinterpret_cast<const char*>(values.data()), 32));
  ASSERT_NE(at, std::string::npos);
  bytes[at + 9] = static_cast<char>(bytes[at + 9] ^ 4);
  write_file(directory / "m.h5", bytes);
  EXPECT_EQ(run(fmt::format("inspect '{}'", file)).status, 0);
  for (const char* arguments : {"'{0}' --verify", "--diff '{0}' '{0}'"}) {
    const auto bad = run("inspect " + fmt::format(fmt::runtime(arguments), file));
    EXPECT_EQ(bad.status, 2);
    EXPECT_THAT(bad.err, HasSubstr("/parameters/values does not have its checksum"));
  }
}

// By hand: 3, 4 and what is no number; squares beyond f64; a norm over two blocks. Seen red:
// squares not scaled (infinite); a block's scale not applied to those before it.
TEST(Inspect, TensorsHaveNormsOfTheirFiniteElements) {
  const TemporaryDirectory directory;
  const std::string file = (directory / "m.h5").string();
  const auto described = [&](DType dtype, const std::vector<double>& values) {
    write_model(directory / "m.h5", dtype, values, {0, 2});
    const auto outcome = run(fmt::format("inspect '{}' --tensors --json", file));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    const Json json = Json::parse(outcome.out);
    EXPECT_EQ(json["tensors"].size(), 3u);
    EXPECT_EQ(json["tensors"][0]["norm"], 0.0);  // no element
    const auto help = run("inspect --help");
    for (const auto& [key, value] : json["tensors"][2].items())
      EXPECT_THAT(help.out, HasSubstr(key));
    return json["tensors"][2];
  };
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    const Json tensor = described(dtype, {-3.0, kNan, 0.0, 4.0, -kInf});
    EXPECT_DOUBLE_EQ(tensor["norm"].get<double>(), 5.0);
    EXPECT_EQ(tensor["not_finite"], 2);
  }
  EXPECT_THAT(run(fmt::format("inspect '{}' --tensors", file)).out,
              testing::ContainsRegex("/parameters/values +f64 +\\[5\\] +norm 5 .*2 elements not "
                                     "finite"));
  EXPECT_DOUBLE_EQ(described(DType::kF64, {3e200, -4e200})["norm"].get<double>(), 5e200);
  EXPECT_DOUBLE_EQ(described(DType::kF64, {3e-200, 4e-200})["norm"].get<double>(), 5e-200);
  std::vector<double> values(1'000'000, 2.0);
  values.back() = 1000.0;  // its block's scale is another
  EXPECT_NEAR(described(DType::kF32, values)["norm"].get<double>(), std::sqrt(4.0 * 999'999 + 1e6),
              1e-9);
  EXPECT_FALSE(Json::parse(run(fmt::format("inspect '{}' --json", file)).out).contains("tensors"));
}

// Version, grid and step of the writer. A checkpoint written elsewhere need not tell a grid.
TEST(Inspect, TellsWhoWroteACheckpoint) {
  const TemporaryDirectory directory;
  const auto described = [&](const std::string& config) {
    CheckpointHeader header;
    header.kind = CheckpointKind::kCheckpoint;
    header.step = 7;
    header.optimizer_step = 6;
    header.program_version = "9.8.7";
    header.model_config_json = header.trainer_json = "{}";
    header.run_config_textproto = config;
    CheckpointWriter(directory / "c.h5", header).commit();
    const auto outcome = run(fmt::format("inspect '{}' --json", (directory / "c.h5").string()));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return Json::parse(outcome.out);
  };
  const Json json = described("seed: 1 parallel { tensor: 2 context: 1 data: 3 }");
  EXPECT_EQ(json["program_version"], "9.8.7");
  EXPECT_EQ(json["step"], 7);
  EXPECT_EQ(json["applied_updates"], 6);
  EXPECT_EQ(json["grid"], (Json{{"tensor", 2}, {"context", 1}, {"data", 3}}));
  const auto text = run(fmt::format("inspect '{}'", (directory / "c.h5").string()));
  EXPECT_THAT(text.out, testing::ContainsRegex("program_version +9.8.7"));
  EXPECT_THAT(text.out, testing::ContainsRegex("step +7"));
  EXPECT_THAT(text.out, HasSubstr(R"({"tensor":2,"context":1,"data":3})"));
  const auto help = run("inspect --help");
  for (const auto& [key, value] : json.items()) EXPECT_THAT(help.out, HasSubstr(key));
  for (const char* config : {"", "seed: 1", "parallel { tensor: 0 data: 1 }", "}{"})
    EXPECT_FALSE(described(config).contains("grid")) << config;
}

// Worked by hand. Seen red: relative to |a| alone; the index within a block.
TEST(Inspect, DiffGivesTheLargestDifferencesOfEachTensor) {
  const TemporaryDirectory directory;
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  write_model(directory / "a.h5", DType::kF64, {1.0, -2.0, 0.0, 8.0, kInf, kNan, kInf, 5.0}, {2, 3},
              "only_a");
  write_model(directory / "b.h5", DType::kF32, {1.0, -1.0, 0.25, 10.0, kInf, kNan, 1.0, kNan},
              {3, 2}, "only_b");
  const std::string files =
      fmt::format("'{}' '{}'", (directory / "a.h5").string(), (directory / "b.h5").string());
  const auto outcome = run("inspect --json --diff " + files);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["only_in_a"], Json({"/parameters/only_a"}));
  EXPECT_EQ(json["only_in_b"], Json({"/parameters/only_b"}));
  ASSERT_EQ(json["other_shape"].size(), 1u);
  EXPECT_EQ(json["other_shape"][0]["a"], Json({2, 3}));
  EXPECT_EQ(json["other_shape"][0]["b"], Json({3, 2}));
  EXPECT_EQ(json["tensors_equal"], 0);
  ASSERT_EQ(json["tensors"].size(), 1u);
  const Json& values = json["tensors"][0];
  EXPECT_EQ(values["elements"], 8);
  EXPECT_EQ(values["differing"], 5);
  EXPECT_EQ(values["not_comparable"], 2);
  EXPECT_EQ(values["largest_absolute"], 2.0);  // 8 and 10
  EXPECT_EQ(values["largest_at"], 3);
  EXPECT_EQ(values["largest_relative"], 1.0);  // 0 and 0.25
  const auto help = run("inspect --help");
  for (const auto& [key, value] : json.items()) EXPECT_THAT(help.out, HasSubstr(key));
  for (const auto& [key, value] : values.items()) EXPECT_THAT(help.out, HasSubstr(key));
  const auto text = run("inspect --diff " + files);
  EXPECT_THAT(text.out, HasSubstr("/parameters/values"));
  EXPECT_THAT(text.out, HasSubstr("largest absolute 2.000e+00"));
  EXPECT_THAT(text.out, HasSubstr("0 of 1 tensors in both are equal"));
}

TEST(Inspect, DiffCountsElementsOverTheWholeTensor) {
  const TemporaryDirectory directory;
  std::vector<double> values(1'000'000, 1.0);  // two blocks
  write_model(directory / "a.h5", DType::kF32, values, {1}, "same");
  values[999'999] = 1.5;
  write_model(directory / "b.h5", DType::kF32, values, {1}, "same");
  const auto outcome =
      run(fmt::format("inspect --json --diff '{}' '{}'", (directory / "a.h5").string(),
                      (directory / "b.h5").string()));
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["tensors_equal"], 2);
  EXPECT_EQ(json["tensors"][2]["dataset"], "/parameters/values");
  EXPECT_EQ(json["tensors"][2]["largest_at"], 999'999);
  EXPECT_EQ(json["tensors"][2]["differing"], 1);
}

TEST(Inspect, DiffRefusesWhatItCannotCompare) {
  const TemporaryDirectory directory;
  write_model(directory / "m.h5", DType::kF32, {1.0}, {2});
  write_file(directory / "r.jsonl", "{}\n");
  const std::string model = (directory / "m.h5").string();
  const auto refused = [&](const std::string& arguments) {
    const auto outcome = run("inspect " + arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    return outcome.err;
  };
  EXPECT_THAT(refused(fmt::format("--diff '{}'", model)), HasSubstr("a second file is missing"));
  EXPECT_THAT(refused(fmt::format("'{0}' '{0}'", model)), HasSubstr("needs --diff"));
  EXPECT_THAT(refused(fmt::format("--diff '{}' '{}'", model, (directory / "r.jsonl").string())),
              HasSubstr("is no model or checkpoint"));
  const auto missing = refused(fmt::format("--diff '{}' '{}'", (directory / "x.h5").string(),
                                           (directory / "y.h5").string()));
  EXPECT_THAT(missing, HasSubstr("x.h5"));
  EXPECT_THAT(missing, HasSubstr("y.h5"));
  EXPECT_THAT(refused(fmt::format("'{}' --verify", (directory / "r.jsonl").string())),
              HasSubstr("--verify"));
}

}  // namespace
}  // namespace coppice
