#pragma once
// A directory with a tiny model, rollouts and a run config: what most end-to-end tests start from.
#include <gmock/gmock.h>

#include "end_to_end/program.hpp"
#include "end_to_end/run_files.hpp"

namespace coppice::test {

class TinyRun : public testing::Test {
 protected:
  TinyRun() {
    const auto made =
        run_program({"init", "--hf-config", golden_case("llama_tied") + "/config.json", "--seed",
                     "7", "--out", dir_ / "model.h5"});
    EXPECT_EQ(made.status, 0) << made.err;
    write_file(dir_ / "rollouts.jsonl", random_rollouts({}));
    write_file(dir_ / "run.textproto",
               "run_dir: \"run\"\n"
               "model { checkpoint: \"model.h5\" }\n"
               "data { rollouts: \"rollouts.jsonl\" groups_per_step: 2 epochs: 10 }\n"
               "batching { sharing: GROUPED max_rows_per_microbatch: 48 }\n"
               "loss { kl_coef: 0 entropy_coef: 0.01 }\n"
               "optimizer { learning_rate: 1e-3 weight_decay: 0.1 }\n"
               "limits { max_steps: 4 }\n");
  }

  /// Arguments of train with `--set` for each assignment.
  std::vector<std::string> train_arguments(const std::vector<std::string>& set) const {
    std::vector<std::string> arguments = {"train", "--config", "run.textproto"};
    for (const auto& assignment : set) {
      arguments.push_back("--set");
      arguments.push_back(assignment);
    }
    return arguments;
  }
  Outcome train(const std::vector<std::string>& set = {}) const {
    return run_program(train_arguments(set), dir_.path().string());
  }
  Outcome train_on_ranks(int ranks, const std::vector<std::string>& set = {}) const {
    return run_program(train_arguments(set), dir_.path().string(), ranks);
  }
  Outcome coppice(const std::vector<std::string>& arguments) const {
    return run_program(arguments, dir_.path().string());
  }
  /// What `coppice plan --json` says of that run.
  nlohmann::json plan(const std::vector<std::string>& set) const {
    auto arguments = train_arguments(set);
    arguments[0] = "plan";
    arguments.push_back("--json");
    const auto outcome = coppice(arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }

  std::string checkpoint(const std::string& run, int step) const {
    char name[64];
    std::snprintf(name, sizeof name, "/checkpoints/step_%08d.h5", step);
    return dir_ / (run + name);
  }
  std::vector<nlohmann::json> metrics(const std::string& run) const {
    return json_lines(dir_ / (run + "/metrics.jsonl"));
  }
  void append(const std::string& name, const std::string& text) const {
    std::ofstream(dir_ / name, std::ios::app | std::ios::binary) << text;
  }

  TemporaryDirectory dir_;
};

/// With ranks.h5 beside it: four heads and two key-value heads, so that two or four tensor ranks
/// can share them.
class TinyRunOfRanks : public TinyRun {
 protected:
  TinyRunOfRanks() {
    auto config = nlohmann::json::parse(read_file(golden_case("llama_tied") + "/config.json"));
    config["num_attention_heads"] = 4;
    config["num_key_value_heads"] = 2;
    config["head_dim"] = 6;
    write_file(dir_ / "config.json", config.dump());
    const auto made = run_program(
        {"init", "--hf-config", dir_ / "config.json", "--seed", "7", "--out", dir_ / "ranks.h5"});
    EXPECT_EQ(made.status, 0) << made.err;
  }
};

}  // namespace coppice::test
