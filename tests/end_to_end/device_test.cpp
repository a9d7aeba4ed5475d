// The program on a CUDA device, real or emulated: train, resume, score, plan, export, and
// checkpoints that move between devices. What a step computes is checked against a plain model in
// tests/rl/trainer_cuda_test.cpp; here it is that the program brings weights there and back.
#include <signal.h>

#include <cmath>

#include "core/build_config.hpp"
#include "end_to_end/program_on_cuda.hpp"

namespace coppice::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::SizeIs;

class RunsOnCuda : public ProgramOnCuda {
 protected:
  Outcome score(const std::string& out, const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {
        "score", "--checkpoint", "model.h5", "--rollouts", "rollouts.jsonl", "--out", out};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return coppice(arguments);
  }
  // How far each token is from the uniform distribution: what a model adds to nothing.
  std::vector<double> scores(const std::string& file) const {
    std::vector<double> values;
    for (const auto& group : json_lines(dir_ / file))
      for (const auto& response : group.at("responses"))
        for (const auto& logprob : response.at("logprobs"))
          values.push_back(logprob.get<double>() + std::log(kVocabulary));
    return values;
  }
  Tensors everything_of(const std::string& run, int step) const {
    return checkpoint_values(checkpoint(run, step), "/");
  }
};

double relative_distance(const std::vector<double>& a, const std::vector<double>& b) {
  const Tensors one{{"", a}}, other{{"", b}};
  return distance(one, other) / distance(other, zeros_like(other));
}

// Values of bf16 are rounded about ten times in a layer on a token's way, each by 2^-9 at most:
// independent of each other, twice their root sum of squares.
const double kBound = 2 * std::ldexp(1.0, -9) * std::sqrt(2 * 10 + 4);

TEST_F(RunsOnCuda, ScoresGroupedAndRepeatedAsTheCpuDoes) {
  ASSERT_EQ(score("cpu.jsonl", {"--device", "cpu"}).status, 0);
  const auto grouped = score("grouped.jsonl", {"--device", "cuda"});
  ASSERT_EQ(grouped.status, 0) << grouped.err;
  ASSERT_EQ(score("repeated.jsonl", {"--precision", "bf16", "--sharing", "repeated"}).status, 0);
  EXPECT_THAT(grouped.err, HasSubstr("computing on cuda:0 ("));
  const auto expected = scores("cpu.jsonl");
  EXPECT_LE(relative_distance(scores("grouped.jsonl"), expected), kBound);
  EXPECT_LE(relative_distance(scores("repeated.jsonl"), expected), kBound);
  // That the CPU's are others shows that bf16 was at work.
  EXPECT_NE(scores("grouped.jsonl"), expected);
}

// Seen red: a model file whose weights reach the masters and not the model's values.
TEST_F(RunsOnCuda, TrainsGroupedAndRepeatedAndReportsWhatItRan) {
  const auto outcome = train({"run_dir=grouped"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  ASSERT_EQ(train({"run_dir=repeated", "batching.sharing=REPEATED"}).status, 0);
  ASSERT_EQ(train({"run_dir=cpu", "device=CPU"}).status, 0);
  const auto grouped = metrics("grouped"), repeated = metrics("repeated"), cpu = metrics("cpu");
  ASSERT_THAT(grouped, SizeIs(2));
  for (const auto& [key, value] : cpu[0].items()) EXPECT_TRUE(grouped[0].contains(key)) << key;
  for (std::size_t i = 0; i < grouped.size(); ++i) {
    for (const char* key : {"rows", "logical_rows", "visible_pairs", "edge_rows", "loss_tokens",
                            "executed_flops", "microbatches", "sharing"})
      EXPECT_EQ(grouped[i].at(key), cpu[i].at(key)) << key << " of step " << i + 1;
    EXPECT_LT(grouped[i]["rows"], repeated[i]["rows"]);
  }
  const auto norm = cpu[0]["grad_norm"].get<double>();
  EXPECT_NEAR(grouped[0]["grad_norm"].get<double>(), norm, kBound * norm);
  EXPECT_NEAR(repeated[0]["grad_norm"].get<double>(), norm, kBound * norm);
  // Gradients, from the first moments of the first update.
  ASSERT_EQ(train({"run_dir=one", "limits.max_steps=1"}).status, 0);
  ASSERT_EQ(train({"run_dir=one_cpu", "limits.max_steps=1", "device=CPU"}).status, 0);
  const auto moments = [&](const char* run) {
    return checkpoint_values(checkpoint(run, 1), "/optimizer/exp_avg/");
  };
  const auto expected = moments("one_cpu");
  EXPECT_LE(distance(moments("one"), expected), kBound * distance(expected, zeros_like(expected)));
}

TEST_F(RunsOnCuda, TwoRunsAndEveryRecomputationAreBitIdentical) {
  for (const auto& [run, recompute] :
       {std::pair{"a", "NONE"}, {"b", "NONE"}, {"c", "BLOCK"}, {"d", "SELECTIVE"}}) {
    const auto outcome =
        train({std::string("run_dir=") + run, std::string("numerics.recompute=") + recompute});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  }
  const auto tensors = everything_of("a", 2);
  for (const char* run : {"b", "c", "d"}) {
    EXPECT_TRUE(everything_of(run, 2) == tensors) << run;
    EXPECT_EQ(without_times(metrics(run)[1]), without_times(metrics("a")[1])) << run;
  }
}

// Seen red: a resume that does not round the masters it read into the model's values.
TEST_F(RunsOnCuda, ARunThatIsKilledGoesOnBitForBit) {
  const std::vector<std::string> set = {"limits.max_steps=3", "checkpoint.every_steps=1",
                                        "loss.updates_per_batch=2"};
  const auto in = [&](const std::string& run) {
    auto all = set;
    all.push_back("run_dir=" + run);
    return all;
  };
  ASSERT_EQ(train(in("straight")).status, 0);
  {
    RunningProgram run(train_arguments(in("killed")), dir_.path().string());
    run.wait_for_lines(dir_ / "killed/metrics.jsonl", 1);
    run.send(SIGKILL);
    run.wait();
  }
  const auto outcome = train(in("killed"));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(everything_of("killed", 3) == everything_of("straight", 3));
  const auto resumed = metrics("killed"), straight = metrics("straight");
  ASSERT_THAT(resumed, SizeIs(3));
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(without_times(resumed[i]), without_times(straight[i]));
}

// Seen red: a memory plan without the master weights.
TEST_F(RunsOnCuda, PlansTheVeryFiguresThatTheRunThenCounts) {
  for (const std::vector<std::string>& set :
       {std::vector<std::string>{"run_dir=grouped"},
        {"run_dir=auto", "batching.sharing=AUTO", "batching.max_rows_per_microbatch=24",
         "loss.updates_per_batch=2", "numerics.recompute=BLOCK"}}) {
    const auto planned = plan(set);
    EXPECT_EQ(planned.at("precision"), "bf16");
    EXPECT_EQ(planned.at("device"), build::kEmulatedDevice ? "cuda (emulated)" : "cuda");
    ASSERT_EQ(train(set).status, 0);
    const auto steps = metrics(set[0].substr(set[0].find('=') + 1));
    ASSERT_EQ(planned.at("steps").size(), steps.size());
    std::int64_t peak = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      for (const char* key :
           {"rows", "microbatches", "visible_pairs", "edge_rows", "executed_flops"})
        EXPECT_EQ(planned["steps"][i].at(key), steps[i].at(key)) << key << " of step " << i + 1;
      peak = std::max(peak, steps[i].at("peak_memory_bytes").get<std::int64_t>());
    }
    EXPECT_EQ(planned["peak_memory_bytes"], peak);
    EXPECT_EQ(planned["memory"]["master_weights"], planned["memory"]["gradients"]);
    EXPECT_EQ(planned["memory"]["moments"], 4 * planned["memory"]["parameters"].get<int>());
  }
}

TEST_F(RunsOnCuda, ACheckpointHoldsTheMastersAndMovesToTheCpuAndBack) {
  // Nothing is learnt: what was read in f32 must come back in f32, though the model computes in
  // bf16.
  ASSERT_EQ(train({"run_dir=still", "optimizer.learning_rate=0", "limits.max_steps=1"}).status, 0);
  EXPECT_TRUE(checkpoint_values(checkpoint("still", 1)) == checkpoint_values(dir_ / "model.h5"));

  ASSERT_EQ(train({"run_dir=cuda"}).status, 0);
  const std::string trained = checkpoint("cuda", 2);
  ASSERT_EQ(train({"run_dir=cpu", "device=CPU", "model.checkpoint=" + trained}).status, 0);
  ASSERT_EQ(train({"run_dir=back", "model.checkpoint=" + checkpoint("cpu", 2)}).status, 0);
  EXPECT_LT(metrics("back")[0]["grad_norm"].get<double>(), 1e3);

  // A run does not change its precision on the way; the refusal names that field alone.
  const auto refused = train({"run_dir=cuda", "device=CPU", "limits.max_steps=3"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.problems(),
              ElementsAre(HasSubstr("numerics.precision = BF16 cannot change to F32")));

  const auto exported = coppice({"export", "--checkpoint", trained, "--out", "hf"});
  ASSERT_EQ(exported.status, 0) << exported.err;
  EXPECT_TRUE(safetensors_values(dir_ / "hf/model.safetensors", "") == checkpoint_values(trained));
  ASSERT_EQ(train({"run_dir=hf_run", "model.checkpoint=\"\"", "model.hf=hf"}).status, 0);
  ASSERT_EQ(train({"run_dir=same", "model.checkpoint=" + trained}).status, 0);
  EXPECT_TRUE(everything_of("hf_run", 2) == everything_of("same", 2));
  EXPECT_THAT(coppice({"inspect", trained}).out, HasSubstr("checkpoint"));
}

TEST_F(RunsOnCuda, RanksThatShareADeviceTrainWhenStagingIsAskedFor) {
  const auto outcome =
      train_on_ranks(2, {"run_dir=two", "parallel.tensor=2", "parallel.communicator=STAGED",
                         "limits.max_steps=1", "limits.parameter_check_steps=1"});
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  ASSERT_EQ(train({"run_dir=one", "limits.max_steps=1"}).status, 0);
  const auto norm = metrics("one")[0]["grad_norm"].get<double>();
  EXPECT_NEAR(metrics("two")[0]["grad_norm"].get<double>(), norm, kBound * norm);
  EXPECT_EQ(metrics("two")[0]["rows"], metrics("one")[0]["rows"]);
}

TEST_F(RunsOnCuda, RanksWithADeviceEachTalkOverNcclWithTheSameBits) {
  const auto run = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> set = {"parallel.tensor=2", "limits.max_steps=1", "run_dir=" + name};
    set.insert(set.end(), more.begin(), more.end());
    return train_on_ranks(2, set);
  };
  const auto direct = run("direct", {});
  if (!has_devices(2)) {
    EXPECT_EQ(direct.status, 2);
    EXPECT_THAT(direct.problems(),
                ElementsAre(HasSubstr("parallel.communicator: 2 ranks on this machine would share "
                                      "1 CUDA device (NCCL takes one rank a device). Start 1 here, "
                                      "or set STAGED")));
    return;
  }
  ASSERT_EQ(direct.status, 0) << direct.err;
  for (const auto& [name, set] : {std::pair{"staged", "parallel.communicator=STAGED"},
                                  {"blocking", "parallel.overlap=false"}}) {
    const auto outcome = run(name, {set});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_TRUE(everything_of("direct", 1) == everything_of(name, 1)) << name;
  }
}

TEST_F(RunsOnCuda, RefusesWhatItCannotRunAndLeavesNothing) {
  const auto before = files_below(dir_.path());
  const auto refusal = [&](const std::vector<std::string>& set, int ranks = 0) {
    const auto outcome = run_program(train_arguments(set), dir_.path().string(), ranks);
    EXPECT_EQ(outcome.status, 2);
    return outcome.problems();
  };
  EXPECT_THAT(refusal({"numerics.precision=F32"}),
              ElementsAre(HasSubstr("numerics.precision=F32: F32 runs on the CPU only")));
  EXPECT_THAT(refusal({"numerics.precision=BF16", "device=CPU"}),
              ElementsAre(HasSubstr("numerics.precision=BF16: BF16 runs on CUDA devices only")));
  EXPECT_THAT(refusal({"device=CPU", "parallel.communicator=STAGED"}),
              ElementsAre(HasSubstr("parallel.communicator=STAGED: STAGED is how ranks on CUDA")));
  EXPECT_EQ(files_below(dir_.path()), before);
  write_config(32);
  init("narrow.h5");
  EXPECT_THAT(refusal({"model.checkpoint=narrow.h5"}),
              ElementsAre(HasSubstr("head_dim = 32 has no attention kernel on CUDA devices (one is "
                                    "compiled for each of 64, 96, 128). Use device: CPU.")));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "run"));
}

// AUTO takes the device, unless the precision is one that only the CPU has.
TEST_F(RunsOnCuda, AutoTakesTheDeviceUnlessThePrecisionIsTheCpus) {
  const auto device = [&](const std::vector<std::string>& set) { return plan(set).at("device"); };
  EXPECT_THAT(device({"device=AUTO"}), HasSubstr("cuda"));
  EXPECT_EQ(device({"device=AUTO", "numerics.precision=F64"}), "cpu");
  EXPECT_EQ(device({"device=CPU"}), "cpu");
  const auto outcome = train({"device=AUTO", "numerics.precision=F32", "limits.max_steps=1"});
  EXPECT_THAT(outcome.err, HasSubstr("computing on cpu\n"));
}

// Nobody may take a run on the emulated device for one on a GPU.
TEST_F(RunsOnCuda, SaysEmulatedWhereTheDeviceIs) {
  const auto emulated = HasSubstr("emulated");
  const auto outcome = train({"limits.max_steps=1"});
  const auto text = coppice({"plan", "--config", "run.textproto"}).out;
  for (const std::string& said : {outcome.err, text}) {
    if (build::kEmulatedDevice)
      EXPECT_THAT(said, emulated);
    else
      EXPECT_THAT(said, Not(emulated));
  }
}

}  // namespace
}  // namespace coppice::test
