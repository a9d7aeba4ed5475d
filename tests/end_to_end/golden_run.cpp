#include "end_to_end/golden_run.hpp"

#include <gmock/gmock.h>

#include <cctype>
#include <cmath>

#include "end_to_end/program.hpp"

namespace coppice::test {
namespace {

double norm(const Tensors& tensors) {
  double squares = 0;
  for (const auto& [name, values] : tensors)
    for (const double value : values) squares += value * value;
  return std::sqrt(squares);
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(c));
  return text;
}

}  // namespace

std::string GoldenRun::words() const {
  std::string words = name + "_" + sharing;
  if (grid.tensor > 1) words += "_tensor" + std::to_string(grid.tensor);
  if (grid.context > 1) words += "_context" + std::to_string(grid.context);
  if (grid.data > 1) words += "_data" + std::to_string(grid.data);
  return words;
}

void PrintTo(const GoldenRun& run, std::ostream* out) { *out << run.words(); }

GoldenJob::GoldenJob(const GoldenRun& run) : run_(run), golden_(golden_case(run.name)) {
  const auto outcome = run_program({"import", "--hf", golden_, "--out", dir_ / "model.h5"});
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  expected_ = nlohmann::json::parse(read_file(golden_ + "/expected.json"));
}

void GoldenJob::run(std::vector<std::string> arguments) const {
  const GridSizes& grid = run_.grid;
  for (const auto& [field, size] :
       {std::pair{"tensor", grid.tensor}, {"context", grid.context}, {"data", grid.data}})
    arguments.insert(arguments.end(),
                     {"--set", std::string("parallel.") + field + "=" + std::to_string(size)});
  const auto outcome = run_program(arguments, ".", grid.ranks() == 1 ? 0 : grid.ranks());
  ASSERT_EQ(outcome.status, 0) << outcome.err;
}

Tensors GoldenJob::scores(const std::string& field) const {
  Tensors values;
  const auto groups = json_lines(dir_ / "scores.jsonl");
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& responses = groups[g].at("responses");
    for (std::size_t r = 0; r < responses.size(); ++r)
      values[std::to_string(g) + "." + std::to_string(r)] =
          responses[r].at(field).get<std::vector<double>>();
  }
  return values;
}

void GoldenJob::expect_scores_of_transformers() const {
  run({"score", "--checkpoint", dir_ / "model.h5", "--rollouts", golden_ + "/rollouts.jsonl",
       "--out", dir_ / "scores.jsonl", "--precision", "f64", "--sharing", run_.sharing});
  for (const std::string field : {"logprobs", "entropies"}) {
    const Tensors golden = safetensors_values(golden_ + "/expected.safetensors", field + ".");
    EXPECT_LE(distance(scores(field), golden), 1e-12 * norm(golden)) << field;
  }
}

void GoldenJob::expect_training_of_transformers() const {
  run({"train", "--config", golden_ + "/run.textproto", "--set",
       "run_dir=" + (dir_ / "run").string(), "--set",
       "model.checkpoint=" + (dir_ / "model.h5").string(), "--set",
       "data.rollouts=" + golden_ + "/rollouts.jsonl", "--set", "numerics.precision=F64", "--set",
       "checkpoint.keep_precision=true", "--set", "batching.sharing=" + upper(run_.sharing)});
  const auto steps = metrics();
  ASSERT_EQ(steps.size(), expected_.at("steps").size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto& expected = expected_["steps"][i];
    for (const auto& [key, value] : expected.items()) {
      if (value.is_object()) continue;  // grouped and repeated: below
      ASSERT_TRUE(steps[i].contains(key)) << key;
      const double want = value.get<double>(), got = steps[i][key].get<double>();
      EXPECT_NEAR(got, want, 1e-9 * std::max(1.0, std::abs(want))) << key << " of step " << i + 1;
    }
    for (const auto& [key, value] : expected.at(run_.sharing).items())
      EXPECT_EQ(steps[i].at(key).get<double>(), value.get<double>()) << key;
    EXPECT_EQ(steps[i].at("sharing"), upper(run_.sharing));
  }
  const auto weights = checkpoint_values(checkpoint());
  const auto golden = safetensors_values(golden_ + "/expected.safetensors", "weights_after.");
  ASSERT_EQ(weights.size(), golden.size());
  // An update's size, from the learning rate: AdamW moves each weight by about it.
  double moved = 0;
  for (const auto& [name, values] : golden) moved += static_cast<double>(values.size());
  moved = std::sqrt(moved) * expected_["steps"][0].at("learning_rate").get<double>();
  EXPECT_LE(distance(weights, golden), 1e-8 * moved);
}

std::vector<nlohmann::json> GoldenJob::metrics() const {
  return json_lines(dir_ / "run/metrics.jsonl");
}

}  // namespace coppice::test
