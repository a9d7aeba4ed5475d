// Run directories whose newest checkpoints are no longer what the run wrote: which one the run goes
// on from, what it says, and that the damaged ones never push out those that are whole.
#include "checkpoint/checkpoint.hpp"
#include "end_to_end/tiny_run.hpp"

namespace coppice::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

class PassedOver : public TinyRun {
 protected:
  // Writes the checkpoint anew, whole in itself, but with one tensor that is not this model's.
  void rewrite(int step, const std::string& dataset, const Shape& shape) const {
    const std::string path = checkpoint("run", step);
    {
      const CheckpointReader reader(path);
      CheckpointWriter writer(path + ".new", reader.header());
      for (const auto& tensor : reader.tensors()) {
        if (tensor.dataset == dataset) continue;
        std::vector<std::byte> values(
            static_cast<std::size_t>(tensor.shape.numel() * size_of(tensor.dtype)));
        reader.read_stored(tensor, 0, tensor.shape[0], values.data());
        writer.write(tensor.dataset, tensor.dtype, Shard::whole(tensor.shape),
                     ConstTensorView(values.data(), tensor.dtype, tensor.shape));
      }
      if (shape.numel() > 0) {
        const std::vector<float> values(static_cast<std::size_t>(shape.numel()));
        writer.write(
            dataset, DType::kF32, Shard::whole(shape),
            ConstTensorView(reinterpret_cast<const std::byte*>(values.data()), DType::kF32, shape));
      }
      writer.commit();
    }
    std::filesystem::rename(path + ".new", path);
  }
  static std::string file(int step) {
    return "run/checkpoints/step_0000000" + std::to_string(step) + ".h5";
  }
};

// Each is a file without damage that the run cannot go on from. Seen red: status 2, though step 1
// is whole.
TEST_F(PassedOver, AreFilesThatHoldAnotherModelThanTheyTell) {
  ASSERT_EQ(train({"run_dir=whole"}).status, 0);
  ASSERT_EQ(train({"checkpoint.every_steps=1", "checkpoint.keep_last=4"}).status, 0);
  rewrite(4, "/parameters/model.norm.weight", {3, 5});
  rewrite(3, "/optimizer/exp_avg_sq/model.norm.weight", {0});
  rewrite(2, "/parameters/of.another.model", {2});
  const auto again = train({"checkpoint.keep_last=4"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_THAT(again.err, AllOf(HasSubstr("passed over " + file(4) + ": /parameters/model.norm"),
                               HasSubstr("passed over " + file(3) + ": /optimizer/exp_avg_sq/"),
                               HasSubstr("passed over " + file(2) + ": /parameters/of.another"),
                               HasSubstr("going on from " + file(1))));
  EXPECT_TRUE(checkpoint_values(checkpoint("run", 4), "/") ==
              checkpoint_values(checkpoint("whole", 4), "/"));
}

// Seen red: of steps 1, 2 (new), 3, 4 (damaged) the newest one stayed, and nothing whole was left.
TEST_F(PassedOver, NeverPushOutTheCheckpointsThatAreWhole) {
  ASSERT_EQ(train({"checkpoint.every_steps=1", "checkpoint.keep_last=4"}).status, 0);
  for (const int step : {2, 3, 4}) write_file(checkpoint("run", step), "damaged");
  const std::vector<std::string> fewer = {"checkpoint.keep_last=1", "limits.max_steps=2"};
  const auto again = train(fewer);
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(CheckpointReader(checkpoint("run", 2)).header().step, 2);
  EXPECT_FALSE(std::filesystem::exists(checkpoint("run", 1)));
  EXPECT_THAT(train(fewer).out, HasSubstr("run is finished: 2 steps are done."));
}

}  // namespace
}  // namespace coppice::test
