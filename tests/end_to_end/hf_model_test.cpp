// A run that begins with a Hugging Face directory, without an import: every grid reads it straight
// into its shards, and all that follows has the bits of a run from the imported model.
// Seen red: the column offset of a rectangle left out; tokenizer files left out; the values of a
// directory not in what ranks agree on; all ranks of a host taken for readers of the same files.
#include "checkpoint/checkpoint.hpp"
#include "end_to_end/grid_job.hpp"
#include "end_to_end/tiny_run.hpp"
#include "support/raw_safetensors.hpp"

namespace coppice::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;

struct HfRun {
  const char* name;
  int tensor, context, data;
  const char* tied;
  const char* export_flags;
};

void PrintTo(const HfRun& run, std::ostream* out) { *out << run.name; }

class HfModelOnAGrid : public testing::TestWithParam<HfRun> {};

TEST_P(HfModelOnAGrid, TrainsBitForBitAsTheImportedModelDoes) {
  const HfRun& run = GetParam();
  const GridJob job({{{"tensor", run.tensor == 3 ? "3" : "2"},
                      {"sharing", "GROUPED"},
                      {"budget", "small"},
                      {"loss", "GRPO"},
                      {"family", "Qwen3"},
                      {"tied", run.tied},
                      {"kv", "some"},
                      {"vocab", "151"}}});
  std::vector<std::string> arguments = {"export", "--checkpoint", "model.h5", "--out", "hf"};
  std::istringstream flags(run.export_flags);
  for (std::string flag; flags >> flag;) arguments.push_back(flag);
  job.run(arguments);
  write_file(job / "hf/tokenizer.json", "{\"of\": \"a tokenizer\"}");
  job.run({"import", "--hf", "hf", "--out", "imported.h5"});
  const int ranks = run.tensor * run.context * run.data;
  const auto train = [&](const std::string& run_dir, const std::string& checkpoint,
                         const std::string& hf) {
    job.run(GridJob::train(run_dir, 2,
                           {"parallel.tensor=" + std::to_string(run.tensor),
                            "parallel.context=" + std::to_string(run.context),
                            "model.checkpoint=" + checkpoint, "model.hf=" + hf}),
            ranks == 1 ? 0 : ranks);
  };
  train("imported", "imported.h5", "");
  train("straight", "", "hf");
  expect_same_bits(job.checkpoint("straight", 2), job.checkpoint("imported", 2));
  const CheckpointReader saved(job.checkpoint("straight", 2));
  EXPECT_EQ(saved.header().model_config_json, read_file(job / "hf/config.json"));
  ASSERT_EQ(saved.header().tokenizer.size(), 1u);
  EXPECT_EQ(saved.header().tokenizer[0].name, "tokenizer.json");
  EXPECT_EQ(saved.header().tokenizer[0].bytes, read_file(job / "hf/tokenizer.json"));
}

INSTANTIATE_TEST_SUITE_P(
    Grids, HfModelOnAGrid,
    testing::Values(HfRun{"One", 1, 1, 1, "tied", "--dtype f16"},
                    HfRun{"TensorTwo", 2, 1, 1, "tied", "--dtype bf16 --max-shard-size 4KB"},
                    HfRun{"TensorThree", 3, 1, 1, "untied", ""},
                    HfRun{"TensorFour", 4, 1, 1, "untied", "--dtype bf16 --max-shard-size 1B"},
                    HfRun{"TensorTwoDataTwo", 2, 1, 2, "tied", "--dtype f16"},
                    HfRun{"ContextTwoDataTwo", 1, 2, 2, "untied", "--dtype bf16"}),
    [](const auto& param) { return param.param.name; });

class HfModelRun : public TinyRun {
 protected:
  HfModelRun() {
    fs::copy(golden_case("llama_tied"), dir_ / "hf");
    write_raw_model(dir_ / "hf", raw_model(dir_ / "hf"));  // as change_weights() lays it out
    fs::create_directories(other_);
    for (const char* name : {"rollouts.jsonl", "run.textproto"})
      fs::copy_file(dir_ / name, fs::path(other_) / name);
    fs::copy(dir_ / "hf", other_ + "/hf");
  }
  std::vector<std::string> from_hf(std::vector<std::string> set = {}) const {
    set.insert(set.end(), {"model.checkpoint=", "model.hf=hf"});
    return set;
  }
  // Three ranks, the last one with a directory of its own but for the run's.
  Outcome train_apart() const {
    const auto arguments = train_arguments(from_hf({"run_dir=" + (dir_ / "run").string()}));
    const std::string mine = dir_.path().string();
    return run_command(program_by_rank({{mine, arguments}, {mine, arguments}, {other_, arguments}}),
                       mine);
  }
  void change_weights(const std::function<void(RawModel&)>& change) const {
    RawModel model = raw_model(other_ + "/hf");
    change(model);
    write_raw_model(other_ + "/hf", model);
  }
  std::string other_ = dir_ / "other";
};

TEST_F(HfModelRun, GoesOnFromItsCheckpointsAndKeepsItsModel) {
  ASSERT_EQ(train(from_hf({"limits.max_steps=1"})).status, 0);
  const auto more = train(from_hf({"limits.max_steps=2"}));
  EXPECT_EQ(more.status, 0) << more.err;
  EXPECT_THAT(more.err, HasSubstr("going on from run/checkpoints/step_00000001.h5"));
  const auto other = train({"limits.max_steps=3"});
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.problems(), Contains(HasSubstr("model.hf = \"hf\" cannot change to not set")));
}

TEST_F(HfModelRun, IsPlannedAsTheImportedModelIs) {
  ASSERT_EQ(coppice({"import", "--hf", "hf", "--out", "imported.h5"}).status, 0);
  EXPECT_EQ(plan(from_hf()), plan({"model.checkpoint=imported.h5"}));
}

TEST_F(HfModelRun, IsRefusedWithEveryProblemOfDirectoryAndRollouts) {
  RawModel model = raw_model(dir_ / "hf");
  model.erase("model.norm.weight");
  model["model.surplus.weight"] = {"F32", "1234", {1}};
  model["model.layers.0.input_layernorm.weight"] = {"F32", "1234", {1}};
  write_raw_model(dir_ / "hf", model);
  write_file(dir_ / "rollouts.jsonl", "junk\n");
  const auto before = files_below(dir_.path());
  const std::vector<std::string> set = from_hf();
  auto planned = train_arguments(set);
  planned[0] = "plan";
  for (const auto& outcome : {train(set), coppice(planned), train_on_ranks(2, set)}) {
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.problems(),
                testing::UnorderedElementsAre(
                    HasSubstr("hf: tensor \"model.norm.weight\" is missing"),
                    HasSubstr("hf: tensor \"model.surplus.weight\" is not part of the model"),
                    HasSubstr("\"model.layers.0.input_layernorm.weight\" has shape [1]"),
                    HasSubstr("rollouts.jsonl:1: ")))
        << outcome.err;
  }
  fs::remove(dir_ / "hf/config.json");
  fs::remove(dir_ / "hf/model.safetensors");
  EXPECT_THAT(train(set).problems(),
              IsSupersetOf({HasSubstr("hf/config.json: cannot be read"),
                            HasSubstr("hf: has neither model.safetensors nor")}));
  EXPECT_EQ(files_below(dir_.path()).size(), before.size() - 2);
}

TEST_F(HfModelRun, FromCopiesOfOneDirectoryIsAllowed) {
  const auto outcome = train_apart();
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

// The two ranks of one copy share the reading of it. Seen red: each its share, not added up.
TEST_F(HfModelRun, FromCopiesThatDifferInOneBitIsRefused) {
  change_weights([](RawModel& model) { model.at("model.norm.weight").bytes.back() ^= 1; });
  const auto values = train_apart();
  EXPECT_EQ(values.status, 2) << values.err;
  EXPECT_THAT(values.problems(),
              ElementsAre(AllOf(HasSubstr("the content of the safetensors in hf on rank 2"),
                                HasSubstr("is not what it is on rank 0"))));
  EXPECT_THAT(files_below(dir_.path()), testing::Not(Contains("run")));
  change_weights([](RawModel& model) { model.at("model.norm.weight").bytes.back() ^= 1; });
  write_file(other_ + "/hf/tokenizer.json", "{}");
  const auto tokenizer = train_apart();
  EXPECT_EQ(tokenizer.status, 2) << tokenizer.err;
  EXPECT_THAT(tokenizer.problems(), ElementsAre(HasSubstr("the model directory hf on rank 2")));
}

TEST_F(HfModelRun, FromADirectoryThatOneRankCannotReadEndsAll) {
  change_weights([](RawModel& model) { model.erase("model.norm.weight"); });
  const auto outcome = train_apart();
  EXPECT_EQ(outcome.status, 2) << outcome.err;
  EXPECT_THAT(outcome.problems(), ElementsAre(HasSubstr("\"model.norm.weight\" is missing")));
  EXPECT_THAT(outcome.reporting_ranks(), ElementsAre(2));
}

}  // namespace
}  // namespace coppice::test
