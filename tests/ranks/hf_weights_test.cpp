// Safetensors read by several ranks straight into the rectangles they hold: the bits are those that
// an import into a model file and a load of that would have brought, whatever the cut and the
// types. Seen red: the column offset of a rectangle left out; a window kept from one tensor to the
// next; f16 taken for bf16.
#include <gmock/gmock.h>

#include <fstream>

#include "checkpoint/hf_weights.hpp"
#include "core/error.hpp"
#include "parallel/mpi/mpi_session.hpp"
#include "ranks/rank_state.hpp"
#include "ranks/ranks_session.hpp"
#include "ranks/shared_directory.hpp"
#include "support/raw_safetensors.hpp"

namespace coppice {
namespace {

using test::bit_equal;
using test::RankState;
using test::RawModel;
using test::SharedDirectory;
using test::TestContext;

// Widths on both sides of what is read row by row, through a window (two of equal size in a row,
// larger than it), and by blocks (4 MiB). Every other one is cut by columns in turn.
const std::vector<std::pair<const char*, Shape>> kShapes = {
    {"a.weight", {7, 5}},     {"b.weight", {5, 11}},     {"bias", {23}},   {"norm", {1}},
    {"one_row", {1, 13}},     {"one_column", {17, 1}},   {"none", {0, 3}}, {"narrow", {1511, 97}},
    {"blocks", {1031, 1300}}, {"as_narrow", {1511, 97}}, {"three", {3}},   {"pages", {67, 4000}},
    {"seven", {7}},           {"far", {9, 16411}}};

const char* name_in_file(DType dtype) {
  return dtype == DType::kBF16  ? "BF16"
         : dtype == DType::kF16 ? "F16"
         : dtype == DType::kF32 ? "F32"
                                : "F64";
}

// Any bits at all, so that infinities, subnormals and NaNs of every kind are among them.
std::string random_bits(const Shape& shape, DType dtype, std::uint64_t seed) {
  std::string bytes(static_cast<std::size_t>(shape.numel() * size_of(dtype)), '\0');
  std::uint64_t state = seed;
  for (char& byte : bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<char>(state >> 56);
  }
  return bytes;
}

class HfWeights : public testing::Test {
 protected:
  // One type for all, or each of the four in turn.
  void write(std::optional<DType> dtype, std::size_t shards) {
    if (world_->rank() == 0) {
      RawModel model;
      std::size_t i = 0;
      for (const auto& [name, shape] : kShapes) {
        const DType type = dtype.value_or(kTypes[i % 4]);
        model[name] = {name_in_file(type), random_bits(shape, type, ++i), nlohmann::json::array()};
        for (const std::int64_t extent : shape.extents()) model[name].shape.push_back(extent);
      }
      if (shards == 0)
        test::write_raw_model(directory_.path(), model);
      else
        test::write_raw_shards(directory_.path(), model, shards);
      // As `coppice import` brings it.
      CheckpointWriter writer(directory_ / "m.h5", {});
      for (const auto& [name, shape] : kShapes) {
        const DType type = *dtype_from_safetensors(model[name].dtype);
        writer.write(std::string("/parameters/") + name, type, Shard::whole(shape),
                     ConstTensorView(reinterpret_cast<const std::byte*>(model[name].bytes.data()),
                                     type, shape));
      }
      writer.commit();
    }
    directory_.wait_for_all();
  }
  std::vector<HfWeight> matched(const SafetensorsModel& model) {
    std::vector<ExpectedTensor> expected;
    for (const auto& [name, shape] : kShapes) expected.push_back({name, shape});
    Problems problems;
    auto weights = match_hf_weights(model, expected, TiedHead::kNo, "here", problems);
    EXPECT_TRUE(problems.empty());
    return weights;
  }
  static std::vector<HfWeight> wide_weights(const SafetensorsModel& model) {
    Problems problems;
    const ExpectedTensor expected[] = {{"w", {4096, 8192}}};
    return match_hf_weights(model, expected, TiedHead::kNo, "here", problems);
  }
  RankState empty_state(DType dtype, const test::Cut& cut) {
    RankState state;
    for (std::size_t place = 0; place < kShapes.size(); ++place)
      for (const Shard& shard : cut(place, kShapes[place].second, world_->rank(), world_->size()))
        state.add(std::string("/parameters/") + kShapes[place].first, shard,
                  context_.filled(dtype, shard.local_shape, 1.0));
    return state;
  }
  void expect_as_imported(DType compute, const test::Cut& cut) {
    RankState straight = empty_state(compute, cut), imported = empty_state(compute, cut);
    const SafetensorsModel model(directory_.path());
    read_hf_weights(matched(model), straight.list);
    CheckpointReader(directory_ / "m.h5", *world_).read(imported.list);
    for (std::size_t i = 0; i < straight.tensors.size(); ++i)
      EXPECT_TRUE(bit_equal(straight.tensors[i], imported.tensors[i]))
          << straight.list[i].dataset << " of " << straight.list[i].shard.local_shape.numel();
  }

  static constexpr DType kTypes[] = {DType::kBF16, DType::kF16, DType::kF32, DType::kF64};
  std::unique_ptr<Communicator> world_ = test::ranks_session().split(0, "world", {.seconds = 60});
  SharedDirectory directory_{*world_};
  TestContext context_{1};
};

TEST_F(HfWeights, OfEveryTypeAreThoseOfAnImport) {
  for (const DType stored : kTypes) {
    write(stored, 0);
    for (const DType compute : {DType::kF32, DType::kF64}) {
      expect_as_imported(compute, test::rows_or_columns);
      expect_as_imported(compute, test::grid);
    }
  }
}

TEST_F(HfWeights, OfShardsOfMixedTypesAreThoseOfAnImportForEveryCut) {
  write({}, 3);
  for (const auto& cut : {test::Cut(test::rows_or_columns), test::Cut(test::grid),
                          test::Cut(test::two_bands), test::Cut(test::all_on_last)})
    expect_as_imported(DType::kF32, cut);
}

TEST_F(HfWeights, OfAnotherNameOrShapeAreABrokenContract) {
  write(DType::kF32, 0);
  const SafetensorsModel model(directory_.path());
  const auto weights = matched(model);
  RankState other;
  other.add("/parameters/other", Shard::whole({2}), context_.zeros(DType::kF32, {2}));
  EXPECT_THROW(read_hf_weights(weights, other.list), ContractError);
  RankState longer;
  longer.add("/parameters/norm", Shard::whole({2}), context_.zeros(DType::kF32, {2}));
  EXPECT_THROW(read_hf_weights(weights, longer.list), ContractError);
}

// A number of this process that the system keeps.
std::int64_t from_proc(const char* file, const std::string& wanted) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);)
    if (line.starts_with(wanted + ":")) return std::stoll(line.substr(wanted.size() + 1));
  return -1;
}

// A model of 64 MiB in bf16, its data a hole in the file.
const Shape kWide{4096, 8192};
void write_wide_model(const SharedDirectory& directory, Communicator& world) {
  if (world.rank() == 0) {
    const std::string header =
        R"({"w":{"dtype":"BF16","shape":[4096,8192],"data_offsets":[0,67108864]}})";
    std::string length(8, '\0');
    length[0] = static_cast<char>(header.size());
    test::write_file(directory / "model.safetensors", length + header);
    std::filesystem::resize_file(directory / "model.safetensors", 8 + header.size() + 67108864);
  }
  directory.wait_for_all();
}

// Rows and wide columns: nothing but the rectangle is read. Seen red: whole rows read.
TEST_F(HfWeights, AreReadByEachRankInItsRectanglesOnly) {
  write_wide_model(directory_, *world_);
  const SafetensorsModel model(directory_.path());
  const auto weights = wide_weights(model);
  for (const int axis : {0, 1}) {
    RankState state;
    const Shard shard = test::part_along(kWide, axis, world_->rank(), world_->size());
    state.add("/parameters/w", shard, context_.filled(DType::kF32, shard.local_shape, 1.0));
    const std::int64_t before = from_proc("/proc/self/io", "rchar");
    read_hf_weights(weights, state.list);
    const std::int64_t read = from_proc("/proc/self/io", "rchar") - before;
    EXPECT_LE(read, 2 * shard.local_shape.numel() + (1 << 16)) << axis;
    EXPECT_EQ(state.tensors[0].view().data<float>()[shard.local_shape.numel() - 1], 0.0f);
  }
}

// Seen red: the block as large as the rectangle.
TEST_F(HfWeights, PassThroughAFewMebibytesOfMemory) {
  write_wide_model(directory_, *world_);
  const SafetensorsModel model(directory_.path());
  const auto weights = wide_weights(model);
  RankState state;
  const Shard shard = test::part_along(kWide, 1, world_->rank(), world_->size());
  state.add("/parameters/w", shard, context_.filled(DType::kF32, shard.local_shape, 1.0));
  std::ofstream("/proc/self/clear_refs") << "5";  // the high-water mark begins anew
  const std::int64_t before = from_proc("/proc/self/status", "VmRSS");
  read_hf_weights(weights, state.list);
  EXPECT_LE(from_proc("/proc/self/status", "VmHWM") - before, 6 * 1024);  // kB
}

}  // namespace
}  // namespace coppice
