// What `export` makes of a training checkpoint, and files of a chosen size.
// Seen red: the f64 of a checkpoint exported as f64; the unit of a size not looked at.
#include <gmock/gmock.h>

#include "checkpoint/checkpoint.hpp"
#include "core/error.hpp"
#include "launch/shell_program.hpp"
#include "support/raw_safetensors.hpp"

namespace coppice {
namespace {

using test::export_to;
using test::import;
using test::kGolden;
using test::raw_model;
using test::RawModel;
using test::read_file;
using test::TemporaryDirectory;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::json;

// f32 from bf16: two zero bytes below it.
std::string f32_of_bf16(const std::string& bytes) {
  std::string wide;
  for (std::size_t i = 0; i < bytes.size(); i += 2)
    wide += std::string(2, '\0') + bytes.substr(i, 2);
  return wide;
}

// f64 from f32, a bit beyond it added to what is not zero.
std::string beyond_f32(const std::string& bytes) {
  std::string wide;
  for (std::size_t i = 0; i < bytes.size(); i += 4) {
    float narrow = 0;
    std::memcpy(&narrow, bytes.data() + i, 4);
    const double value = static_cast<double>(narrow) * (1 + 0x1p-40);
    wide.append(reinterpret_cast<const char*>(&value), 8);
  }
  return wide;
}

// A checkpoint that has trained `source`, whose weights are as in `master`.
void write_checkpoint(const std::filesystem::path& path, const std::filesystem::path& source,
                      DType dtype, const RawModel& master) {
  CheckpointHeader header;
  header.kind = CheckpointKind::kCheckpoint;
  header.model_config_json = read_file(source / "config.json");
  header.run_config_textproto = "seed: 1\n";
  header.trainer_json = "{}";
  header.tokenizer = {{"tokenizer.json", "{}"}};
  CheckpointWriter writer(path, header);
  for (const auto& [name, tensor] : master) {
    const std::vector<std::int64_t> extents = tensor.shape;
    const Shape shape{std::span(extents)};
    const ConstTensorView view(reinterpret_cast<const std::byte*>(tensor.bytes.data()), dtype,
                               shape);
    for (const char* group : {"/parameters/", "/optimizer/exp_avg/", "/optimizer/exp_avg_sq/"})
      writer.write(group + name, dtype, Shard::whole(shape), view);
  }
  writer.commit();
}

std::string dtype_in_config(const std::filesystem::path& directory) {
  const auto config = Json::parse(read_file(directory / "config.json"));
  return config.contains("dtype") ? config["dtype"] : config["torch_dtype"];
}

// A bf16 model, trained: its master weights are f32, and so is what is exported unless told.
TEST(ExportOfACheckpoint, TakesTheMasterWeights) {
  const TemporaryDirectory directory;
  const auto source = kGolden / "qwen2_tied_bf16";
  RawModel master = raw_model(source);
  for (auto& [name, tensor] : master) tensor = {"F32", f32_of_bf16(tensor.bytes), tensor.shape};
  write_checkpoint(directory / "c.h5", source, DType::kF32, master);
  ASSERT_EQ(export_to(directory / "c.h5", directory / "f32").status, 0);
  EXPECT_EQ(raw_model(directory / "f32"), master);
  EXPECT_EQ(dtype_in_config(directory / "f32"), "float32");
  EXPECT_EQ(read_file(directory / "f32" / "tokenizer.json"), "{}");
  ASSERT_EQ(export_to(directory / "c.h5", directory / "bf16", "--dtype bf16").status, 0);
  EXPECT_EQ(raw_model(directory / "bf16"), raw_model(source));
  EXPECT_EQ(dtype_in_config(directory / "bf16"), "bfloat16");
  const auto described =
      test::run(fmt::format("inspect '{}' --json", (directory / "c.h5").string()));
  EXPECT_EQ(Json::parse(described.out)["kind"], "checkpoint");
  EXPECT_EQ(Json::parse(described.out)["applied_updates"], 0);
}

// checkpoint.keep_precision keeps f64 for the run itself; what is exported is f32 unless told.
TEST(ExportOfACheckpoint, ThatKeepsF64WritesF32) {
  const TemporaryDirectory directory;
  const auto source = kGolden / "llama_tied";
  RawModel master = raw_model(source);
  for (auto& [name, tensor] : master) tensor = {"F64", beyond_f32(tensor.bytes), tensor.shape};
  write_checkpoint(directory / "c.h5", source, DType::kF64, master);
  ASSERT_EQ(export_to(directory / "c.h5", directory / "f32").status, 0);
  EXPECT_EQ(raw_model(directory / "f32"), raw_model(source));
  EXPECT_EQ(dtype_in_config(directory / "f32"), "float32");
  ASSERT_EQ(export_to(directory / "c.h5", directory / "bf16", "--dtype bf16").status, 0);
  EXPECT_EQ(dtype_in_config(directory / "bf16"), "bfloat16");
}

// Only what is exported is read and compared. Seen red: everything verified.
TEST(ExportOfACheckpoint, LooksAtItsWeightsAlone) {
  const TemporaryDirectory directory;
  const auto source = kGolden / "llama_tied";
  const RawModel master = raw_model(source);
  write_checkpoint(directory / "c.h5", source, DType::kF32, master);
  // Weights and moments hold the same bytes here, in the order in which they were written.
  const std::string whole = read_file(directory / "c.h5");
  const std::string& values = master.at("model.embed_tokens.weight").bytes;
  std::vector<int> statuses;
  for (auto at = whole.find(values); at != whole.npos; at = whole.find(values, at + 1)) {
    std::string damaged = whole;
    damaged[at + values.size() / 2] = static_cast<char>(damaged[at + values.size() / 2] ^ 1);
    test::write_file(directory / "d.h5", damaged);
    const auto outcome =
        export_to(directory / "d.h5", directory / ("out" + std::to_string(statuses.size())));
    statuses.push_back(outcome.status);
    EXPECT_THAT(outcome.err,
                AnyOf(HasSubstr("exported"),
                      HasSubstr("/parameters/model.embed_tokens.weight does not have")));
    EXPECT_EQ(test::run(fmt::format("inspect '{}' --verify", (directory / "d.h5").string())).status,
              2);
  }
  EXPECT_THAT(statuses, testing::UnorderedElementsAre(2, 0, 0));
}

// A model file holds what its source held: f64 too.
TEST(ExportOfAModel, KeepsTheTypeOfItsSource) {
  const TemporaryDirectory directory;
  std::filesystem::copy(kGolden / "llama_tied", directory / "in");
  RawModel model = raw_model(directory / "in");
  auto& norm = model.at("model.norm.weight");
  norm = {"F64", beyond_f32(norm.bytes), norm.shape};
  test::write_raw_model(directory / "in", model);
  ASSERT_EQ(import(directory / "in", directory / "m.h5").status, 0);
  ASSERT_EQ(export_to(directory / "m.h5", directory / "out").status, 0);
  EXPECT_EQ(raw_model(directory / "out"), model);
}

TEST(ExportInSeveralFiles, HoldsWhatOneFileHoldsAndIsImportedAgain) {
  for (const char* name : {"llama_tied", "llama_untied", "qwen2_tied_bf16", "llama_linear_f16"}) {
    const TemporaryDirectory directory;
    ASSERT_EQ(import(kGolden / name, directory / "m.h5").status, 0);
    const auto outcome =
        export_to(directory / "m.h5", directory / "shards", "--max-shard-size 3KB");
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_THAT(outcome.err, testing::ContainsRegex("in [0-9]+ files to"));
    EXPECT_FALSE(std::filesystem::exists(directory / "shards" / "model.safetensors"));
    std::size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(directory / "shards")) {
      if (entry.path().extension() != ".safetensors") continue;
      ++files;
      std::size_t bytes = 0;
      const RawModel tensors = test::raw_file(entry.path());
      for (const auto& [tensor_name, tensor] : tensors) bytes += tensor.bytes.size();
      EXPECT_TRUE(bytes <= 3'000 || tensors.size() == 1) << entry.path();
    }
    EXPECT_GT(files, 2u);
    EXPECT_EQ(raw_model(directory / "shards"), raw_model(kGolden / name));
    ASSERT_EQ(import(directory / "shards", directory / "again.h5").status, 0);
    EXPECT_EQ(read_file(directory / "again.h5"), read_file(directory / "m.h5"));
  }
}

TEST(ExportInSeveralFiles, TakesSizesAndRefusesWhatIsNone) {
  const TemporaryDirectory directory;
  ASSERT_EQ(import(kGolden / "llama_tied", directory / "m.h5").status, 0);
  for (const char* size : {"0", "-1", "GB", "1.5GB", "1 GB", "1gb", "1TB", "9999999999GB", ""}) {
    const auto outcome = export_to(directory / "m.h5", directory / "out",
                                   fmt::format("--max-shard-size '{}'", size));
    EXPECT_EQ(outcome.status, 2) << size;
    EXPECT_THAT(outcome.err, HasSubstr("--max-shard-size")) << size;
  }
  EXPECT_THAT(directory.names(), ElementsAre("m.h5"));
  // All tensors have more than 20,000 bytes and less than 1 MiB.
  for (const auto& [size, several] :
       {std::pair("20000", true), std::pair("20KB", true), std::pair("20KiB", true),
        std::pair("1MB", false), std::pair("1MiB", false), std::pair("1GiB", false)}) {
    const auto outcome =
        export_to(directory / "m.h5", directory / size, fmt::format("--max-shard-size {}", size));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(std::filesystem::exists(directory / size / "model.safetensors.index.json"), several)
        << size;
  }
}

}  // namespace
}  // namespace coppice
