#include "end_to_end/grid_runs.hpp"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/rng.hpp"
#include "end_to_end/run_files.hpp"

namespace coppice::test {
namespace {

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line);
  return {std::istream_iterator<std::string>(stream), {}};
}

// Adds values that no model computed, near enough to a fresh model's that some ratios are clipped
// and some are not.
void add_logprobs(nlohmann::json& group, const char* field, int vocab_size) {
  const RandomStream random(5, std::string(field) + group.at("group").get<std::string>());
  std::uint64_t drawn = 0;
  for (auto& response : group.at("responses")) {
    std::vector<double> values;
    for (std::size_t i = 0; i < response.at("ids").size(); ++i)
      values.push_back(-std::log(vocab_size) - 0.7 + 0.8 * random.normal(drawn++));
    response[field] = values;
  }
}

// The row's loss as the run config's fields.
std::string loss_of(const GridRunRow& row) {
  const std::string& loss = row["loss"];
  if (loss == "GRPO") return "loss { kind: GRPO entropy_coef: 0.01 }";
  if (loss == "GRPO2") return "loss { kind: GRPO updates_per_batch: 2 kl_coef: 0.05 }";
  if (loss == "DAPO") return "loss { kind: DAPO temperature: 0.8 kl_coef: 0.1 kl_estimator: K2 }";
  if (loss == "DR_GRPO") return "loss { kind: DR_GRPO max_response_length: 9 dual_clip: 3 }";
  return "loss { kind: " + loss + " }";
}

}  // namespace

std::string GridRunRow::name() const {
  std::string name = fmt::format("tensor{}context{}data{}", words.at("tensor"), words.at("context"),
                                 words.at("data"));
  if (words.at("sequence") == "on") name += "sequence";
  for (const char* column : {"zero", "sharing", "budget", "recompute", "loss", "family", "tied"})
    name += "_" + words.at(column);
  return name + "_" + words.at("kv") + words.at("vocab");
}

void PrintTo(const GridRunRow& row, std::ostream* out) { *out << row.name(); }

std::vector<GridRunRow> grid_run_rows() {
  std::ifstream file(COPPICE_SOURCE_DIR "/tests/end_to_end/grid_runs.txt");
  std::vector<std::string> columns;
  std::vector<GridRunRow> rows;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const auto words = words_of(line);
    if (columns.empty()) {
      columns = words;
      continue;
    }
    GridRunRow row;
    for (std::size_t i = 0; i < columns.size(); ++i) row.words[columns[i]] = words.at(i);
    rows.push_back(row);
  }
  return rows;
}

std::string model_config_of(const GridRunRow& row) {
  const bool three = row["tensor"] == "3";
  const int heads = three ? 9 : 8, some = three ? 3 : 2;
  nlohmann::json config = {{"architectures", {row["family"] + "ForCausalLM"}},
                           {"hidden_size", 20},
                           {"intermediate_size", three ? 15 : 40},
                           {"num_hidden_layers", 2},
                           {"num_attention_heads", heads},
                           {"num_key_value_heads", row["kv"] == "all"    ? heads
                                                   : row["kv"] == "some" ? some
                                                                         : 1},
                           {"head_dim", 4},
                           {"vocab_size", row.number("vocab")},
                           {"max_position_embeddings", 64},
                           {"rms_norm_eps", 1e-5},
                           {"initializer_range", 0.3},  // attention and softmax far from uniform
                           {"tie_word_embeddings", row["tied"] == "tied"}};
  return config.dump();
}

std::string rollouts_of(const GridRunRow& row) {
  const int vocab_size = row.number("vocab");
  std::istringstream lines(random_rollouts({.groups = 6, .vocab_size = vocab_size}));
  std::string text;
  for (std::string line; std::getline(lines, line);) {
    auto group = nlohmann::json::parse(line);
    const std::string& loss = row["loss"];
    if (loss == "DAPO" || loss == "DR_GRPO") add_logprobs(group, "old_logprobs", vocab_size);
    if (loss == "DAPO" || loss == "GRPO2") add_logprobs(group, "ref_logprobs", vocab_size);
    text += group.dump() + "\n";
  }
  return text;
}

std::string run_config_of(const GridRunRow& row) {
  // The largest group has 48 rows; AUTO cuts some.
  const int budget = row["budget"] == "large" ? 1000 : row["sharing"] == "AUTO" ? 30 : 48;
  return fmt::format(
      "run_dir: \"run\"\n"
      "model {{ checkpoint: \"model.h5\" }}\n"
      "data {{ rollouts: \"rollouts.jsonl\" groups_per_step: 4 epochs: 10 }}\n"
      "batching {{ sharing: {} max_rows_per_microbatch: {} }}\n"
      "{}\n"
      "optimizer {{ learning_rate: 1e-3 weight_decay: 0.1 }}\n"
      "numerics {{ precision: F64 }}\n"
      "threads_per_rank: 1\n"
      "checkpoint {{ every_steps: 1 keep_last: 9 keep_precision: true }}\n",
      row["sharing"], budget, loss_of(row));
}

std::vector<std::string> grid_settings(const GridRunRow& row) {
  return {"parallel.tensor=" + row["tensor"],
          "parallel.context=" + row["context"],
          "parallel.data=" + row["data"],
          std::string("parallel.sequence_parallel=") + (row["sequence"] == "on" ? "true" : "false"),
          "parallel.zero=" + row["zero"],
          "numerics.recompute=" + row["recompute"]};
}

}  // namespace coppice::test
