// import, export, init and inspect through the program itself. Safetensors files are taken apart
// by hand, so that a bit lost on the way in and found again on the way out would still be
// seen. Seen red: bf16 read as f16; config.json re-printed although its dtype was right; lm_head
// compared by name only; ties rounded away from zero.
#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint.hpp"
#include "core/error.hpp"
#include "launch/shell_program.hpp"
#include "support/raw_safetensors.hpp"
#include "support/temporary_directory.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;
using test::export_to;
using test::import;
using test::kGolden;
using test::raw_model;
using test::RawModel;
using test::read_file;
using test::run;
using test::TemporaryDirectory;
using test::write_file;
using test::write_raw_model;
using testing::ElementsAre;
using testing::HasSubstr;
using Json = nlohmann::json;

class ImportExport : public testing::TestWithParam<std::string> {};

TEST_P(ImportExport, IsBitEqualToTheSource) {
  const fs::path source = kGolden / GetParam();
  const TemporaryDirectory directory;
  ASSERT_EQ(import(source, directory / "m.h5").status, 0);
  const auto outcome = export_to(directory / "m.h5", directory / "hf");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const RawModel before = raw_model(source), after = raw_model(directory / "hf");
  EXPECT_FALSE(before.empty());
  for (const auto& [name, tensor] : before) {
    ASSERT_TRUE(after.contains(name)) << name;
    EXPECT_EQ(after.at(name), tensor) << name;
  }
  EXPECT_EQ(before.size(), after.size());
  EXPECT_EQ(read_file(directory / "hf" / "config.json"), read_file(source / "config.json"));
  EXPECT_THAT(directory.names(), ElementsAre("hf", "m.h5"));
}

INSTANTIATE_TEST_SUITE_P(Golden, ImportExport,
                         testing::Values("llama_linear_f16", "llama_tied", "llama_untied",
                                         "mistral_sharded", "mistral_tied", "qwen2_tied_bf16",
                                         "qwen2_untied", "qwen3_tied", "qwen3_untied"),
                         [](const auto& param) { return param.param; });

TEST(ImportExportFiles, TokenizerFilesTravelAlong) {
  const TemporaryDirectory directory;
  fs::copy(kGolden / "llama_tied", directory / "in");
  const std::string bytes("{\"a\": \"\0\xff\"}", 11);
  write_file(directory / "in" / "tokenizer.json", bytes);
  write_file(directory / "in" / "merges.txt", "");
  write_file(directory / "in" / "README.md", "not a tokenizer's file");
  // Spelt as no JSON library would print it.
  const std::string config = " " + read_file(directory / "in" / "config.json") + "\n\n";
  write_file(directory / "in" / "config.json", config);
  ASSERT_EQ(import(directory / "in", directory / "m.h5").status, 0);
  ASSERT_EQ(export_to(directory / "m.h5", directory / "out").status, 0);
  EXPECT_EQ(read_file(directory / "out" / "tokenizer.json"), bytes);
  EXPECT_EQ(read_file(directory / "out" / "config.json"), config);
  EXPECT_TRUE(fs::exists(directory / "out" / "merges.txt"));
  EXPECT_FALSE(fs::exists(directory / "out" / "README.md"));
}

TEST(Export, RoundsToNearestEvenAndTheConfigFollows) {
  const TemporaryDirectory directory;
  fs::copy(kGolden / "llama_tied", directory / "in");
  RawModel model = raw_model(directory / "in");
  // 1 + 2^-8 is halfway between two bf16: the even one is 1. 1 + 3 2^-8 goes up, to 1 + 2^-6.
  const float numbers[] = {1.00390625f, 1.01171875f, 3e38f};
  auto& norm = model.at("model.norm.weight").bytes;
  ASSERT_GE(norm.size(), sizeof(numbers));
  std::memcpy(norm.data(), numbers, sizeof(numbers));
  write_raw_model(directory / "in", model);
  ASSERT_EQ(import(directory / "in", directory / "m.h5").status, 0);
  ASSERT_EQ(export_to(directory / "m.h5", directory / "bf16", "--dtype bf16").status, 0);
  ASSERT_EQ(export_to(directory / "m.h5", directory / "f16", "--dtype f16").status, 0);
  const auto words = [&](const char* name) {
    const auto tensor = raw_model(directory / name).at("model.norm.weight");
    std::array<std::uint16_t, 3> bits{};
    std::memcpy(bits.data(), tensor.bytes.data(), 6);
    return std::pair(tensor.dtype, bits);
  };
  EXPECT_EQ(words("bf16"),
            (std::pair(std::string("BF16"), std::array<std::uint16_t, 3>{0x3f80, 0x3f82, 0x7f62})));
  EXPECT_EQ(words("f16"),
            (std::pair(std::string("F16"), std::array<std::uint16_t, 3>{0x3c04, 0x3c0c, 0x7c00})));
  // This config says "dtype"; the spelling stays.
  auto expected = nlohmann::ordered_json::parse(read_file(directory / "in" / "config.json"));
  expected["dtype"] = "bfloat16";
  EXPECT_EQ(nlohmann::ordered_json::parse(read_file(directory / "bf16" / "config.json")), expected);
}

// 65519 still rounds to 65504, the largest f16; 65520 becomes infinite, as in PyTorch.
TEST(Export, SaysWhereATypeMakesWeightsInfinite) {
  const TemporaryDirectory directory;
  fs::copy(kGolden / "llama_untied", directory / "in");
  RawModel model = raw_model(directory / "in");
  const float numbers[] = {65519.0f, -65520.0f};
  std::memcpy(model.at("model.norm.weight").bytes.data(), numbers, sizeof(numbers));
  write_raw_model(directory / "in", model);
  ASSERT_EQ(import(directory / "in", directory / "m.h5").status, 0);
  const auto narrow = export_to(directory / "m.h5", directory / "f16", "--dtype f16");
  EXPECT_EQ(narrow.status, 0);
  EXPECT_THAT(narrow.err, HasSubstr("model.norm.weight: 1 elements are beyond f16"));
  const auto wide = export_to(directory / "m.h5", directory / "bf16", "--dtype bf16");
  EXPECT_THAT(wide.err, testing::Not(HasSubstr("infinite")));
}

TEST(Export, NeverTouchesAFullDirectory) {
  const TemporaryDirectory directory;
  ASSERT_EQ(import(kGolden / "llama_tied", directory / "m.h5").status, 0);
  fs::create_directory(directory / "out");
  write_file(directory / "out" / "mine", "x");
  write_file(directory / "file", "x");
  for (const char* name : {"out", "file"}) {
    const auto outcome = export_to(directory / "m.h5", directory / name);
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr("not an empty directory"));
  }
  EXPECT_THAT(directory.names(), ElementsAre("file", "m.h5", "out"));
  fs::remove(directory / "out" / "mine");
  EXPECT_EQ(export_to(directory / "m.h5", directory / "out").status, 0) << "an empty one will do";
}

// Bad usage, told before any work: status 2, as for every path that cannot be what it is to be.
// Seen red: the file made first, where each of these was an I/O error.
TEST(Outputs, ThatCannotBeMadeAreRefusedAndNothingIsWritten) {
  const TemporaryDirectory directory;
  ASSERT_EQ(import(kGolden / "llama_tied", directory / "m.h5").status, 0);
  fs::copy(kGolden / "llama_tied", directory / "in");
  const auto config = read_file(directory / "in" / "config.json");
  write_file(directory / "file", "x");
  const auto names = directory.names();
  const auto init = [&](const fs::path& out) {
    return run(fmt::format("init --hf-config '{}' --seed 1 --out '{}'",
                           (directory / "in" / "config.json").string(), out.string()));
  };
  for (const auto& out : {directory / "none" / "x", directory / "file" / "x"}) {
    for (const auto& outcome :
         {import(directory / "in", out), init(out), export_to(directory / "m.h5", out)}) {
      EXPECT_EQ(outcome.status, 2) << out << outcome.err;
      EXPECT_THAT(outcome.err, HasSubstr("does not exist. Make it first."));
    }
  }
  for (const auto& outcome :
       {import(directory / "in", ""), init(""), export_to(directory / "m.h5", "")}) {
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr("--out is empty."));
  }
  for (const auto& outcome : {import(directory / "in", directory / "in"), init(directory / "in")}) {
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr("is no file that could be replaced"));
  }
  for (const auto& outcome :
       {import(directory / "in", directory / "in" / "config.json"),
        init(directory / "in" / "config.json"), init(directory / "in" / "model.safetensors")}) {
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr("is an input of this command"));
  }
  const fs::path long_name = directory / std::string(300, 'a');
  for (const auto& outcome : {import(directory / "in", long_name), init(long_name),
                              export_to(directory / "m.h5", long_name)}) {
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr("File name too long"));
  }
  EXPECT_EQ(directory.names(), names);
  EXPECT_EQ(read_file(directory / "in" / "config.json"), config);
}

// Seen red: every file beside the inputs counted as one, so that nothing could be made there twice.
TEST(Outputs, MayBeMadeTwiceBesideTheInputs) {
  const TemporaryDirectory directory;
  fs::copy(kGolden / "llama_tied", directory / "in");
  for (int time = 0; time < 2; ++time) {
    EXPECT_EQ(import(directory / "in", directory / "in" / "m.h5").status, 0);
    EXPECT_EQ(run(fmt::format("init --hf-config '{0}/config.json' --seed 1 --out '{0}/i.h5'",
                              (directory / "in").string()))
                  .status,
              0);
  }
}

// Names that leave no room for what a temporary name adds. Seen red: an I/O error.
TEST(Outputs, MayHaveTheLongestNamesThereAre) {
  const TemporaryDirectory directory;
  const std::string file(255, 'f'), exported(255, 'e');
  ASSERT_EQ(import(kGolden / "llama_tied", directory / file).status, 0);
  ASSERT_EQ(export_to(directory / file, directory / exported).status, 0);
  EXPECT_EQ(directory.names(), (std::vector<std::string>{exported, file}));
}

// Seen red: all the work was done before the new directory could not take the link's place.
TEST(Outputs, MayBeALinkToAnEmptyDirectory) {
  const TemporaryDirectory directory;
  ASSERT_EQ(import(kGolden / "llama_tied", directory / "m.h5").status, 0);
  fs::create_directory(directory / "empty");
  fs::create_directory_symlink("empty", directory / "link");
  const auto outcome = export_to(directory / "m.h5", directory / "link");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_TRUE(fs::exists(directory / "empty" / "model.safetensors"));
  EXPECT_TRUE(fs::is_symlink(directory / "link"));
}

// Seen red: only the output's problem was told.
TEST(Outputs, AreRefusedTogetherWithTheInput) {
  const TemporaryDirectory directory;
  const auto exported = export_to(directory / "no.h5", directory / "none" / "x");
  EXPECT_THAT(exported.err, HasSubstr("no.h5: there is no file"));
  EXPECT_THAT(exported.err, HasSubstr("does not exist. Make it first."));
  const auto made =
      run(fmt::format("init --hf-config '{}' --seed 1 --out '{}'", (directory / "no.json").string(),
                      (directory / "none" / "x").string()));
  EXPECT_THAT(made.err, HasSubstr("no.json: cannot be read"));
  EXPECT_THAT(made.err, HasSubstr("does not exist. Make it first."));
}

TEST(Import, ReportsEveryProblemAndWritesNothing) {
  const TemporaryDirectory directory;
  fs::copy(kGolden / "llama_untied", directory / "in");
  RawModel model = raw_model(directory / "in");
  model.erase("model.norm.weight");
  model["model.surplus.weight"] = {"F32", "1234", {1}};
  model["model.layers.0.input_layernorm.weight"] = {"F32", "1234", {1}};
  auto& head = model.at("lm_head.weight");
  head.dtype = "I32";
  write_raw_model(directory / "in", model);
  const auto outcome = import(directory / "in", directory / "m.h5");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("\"model.norm.weight\" is missing"));
  EXPECT_THAT(outcome.err, HasSubstr("\"model.surplus.weight\" is not part of the model"));
  EXPECT_THAT(outcome.err, HasSubstr("\"model.layers.0.input_layernorm.weight\" has shape [1]"));
  EXPECT_THAT(outcome.err, HasSubstr("\"lm_head.weight\" has type I32"));
  EXPECT_THAT(directory.names(), ElementsAre("in"));
}

TEST(Import, ReportsABadConfigTogetherWithABadHeader) {
  const TemporaryDirectory directory;
  fs::copy(kGolden / "llama_tied", directory / "in");
  auto config = Json::parse(read_file(directory / "in" / "config.json"));
  config["hidden_act"] = "gelu";
  config["attention_dropout"] = 0.5;
  write_file(directory / "in" / "config.json", config.dump());
  write_file(directory / "in" / "model.safetensors", "12345678{");
  const auto outcome = import(directory / "in", directory / "m.h5");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("hidden_act"));
  EXPECT_THAT(outcome.err, HasSubstr("attention_dropout"));
  EXPECT_THAT(outcome.err, HasSubstr("model.safetensors: a header of"));
  EXPECT_THAT(directory.names(), ElementsAre("in"));
}

TEST(Import, RefusesWhatIsNoDirectory) {
  const TemporaryDirectory directory;
  EXPECT_EQ(import(directory / "missing", directory / "m.h5").status, 2);
  fs::create_directory(directory / "empty");
  const auto outcome = import(directory / "empty", directory / "m.h5");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("config.json"));
  EXPECT_THAT(outcome.err, HasSubstr("neither model.safetensors nor"));
  EXPECT_THAT(directory.names(), ElementsAre("empty"));
}

TEST(Import, PassesOverAHeadThatIsTheEmbeddingAndRefusesAnother) {
  const TemporaryDirectory directory;
  fs::copy(kGolden / "llama_tied", directory / "in");
  RawModel model = raw_model(directory / "in");
  model["lm_head.weight"] = model.at("model.embed_tokens.weight");
  model["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"F32", "12345678", {2}};
  write_raw_model(directory / "in", model);
  ASSERT_EQ(import(directory / "in", directory / "m.h5").status, 0);
  ASSERT_EQ(export_to(directory / "m.h5", directory / "out").status, 0);
  EXPECT_EQ(raw_model(directory / "out"), raw_model(kGolden / "llama_tied"));

  model["lm_head.weight"].bytes.back() ^= 1;
  write_raw_model(directory / "in", model);
  const auto outcome = import(directory / "in", directory / "other.h5");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, HasSubstr("tie_word_embeddings is true"));
  EXPECT_FALSE(fs::exists(directory / "other.h5"));
}

TEST(Import, LeavesNothingWhenTheDiskIsFull) {
  const TemporaryDirectory directory;
  const std::string arguments =
      fmt::format("import --hf '{}' --out '{}'", (kGolden / "llama_tied").string(),
                  (directory / "m.h5").string());
  for (int blocks : {4, 16, 40}) {  // of 512 or 1024 bytes; what stderr says must fit
    const auto outcome = run(arguments, fmt::format("trap '' XFSZ; ulimit -f {};", blocks));
    EXPECT_NE(outcome.status, 0) << blocks;
    EXPECT_LT(outcome.status, 128) << blocks << ": no signal";
    EXPECT_TRUE(directory.names().empty()) << blocks;
  }
}

// The C library fills what is freed, so that whoever reads it afterwards does not find what it was.
// Seen red: the driver of written files registered for each of them (HDF5 reads it once more after
// it has freed it).
TEST(Import, ReadsNoMemoryThatIsFreed) {
  const TemporaryDirectory directory;
  const auto outcome =
      run(fmt::format("import --hf '{}' --out '{}'", (kGolden / "llama_tied").string(),
                      (directory / "m.h5").string()),
          "GLIBC_TUNABLES=glibc.malloc.tcache_count=0:glibc.malloc.perturb=165");
  EXPECT_EQ(outcome.status, 0) << outcome.err;
}

TEST(Init, GivesTheSameWeightsForTheSameSeed) {
  const TemporaryDirectory directory;
  const auto init = [&](const char* seed, const char* name) {
    const auto outcome = run(fmt::format("init --hf-config '{}' --seed {} --out '{}'",
                                         (kGolden / "qwen2_untied" / "config.json").string(), seed,
                                         (directory / name).string()));
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(export_to(directory / name, directory / (std::string(name) + ".hf")).status, 0);
    return raw_model(directory / (std::string(name) + ".hf"));
  };
  const RawModel first = init("7", "a"), again = init("7", "b"), other = init("8", "c");
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
  const RawModel trained = raw_model(kGolden / "qwen2_untied");
  ASSERT_EQ(first.size(), trained.size());
  for (const auto& [name, tensor] : first) {
    EXPECT_EQ(tensor.shape, trained.at(name).shape) << name;
    EXPECT_EQ(tensor.dtype, "F32");
    std::vector<float> values(tensor.bytes.size() / 4);
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    double square = 0;
    for (float value : values) square += static_cast<double>(value) * value;
    const double rms = std::sqrt(square / static_cast<double>(values.size()));
    if (name.ends_with("norm.weight"))
      EXPECT_THAT(values, testing::Each(1.0f)) << name;
    else if (name.ends_with(".bias"))
      EXPECT_THAT(values, testing::Each(0.0f)) << name;
    // normal(0, 0.02): the rms of n values is within 5 / sqrt(2 n) of it, relatively.
    else
      EXPECT_NEAR(rms, 0.02, 0.02 * 5 / std::sqrt(2.0 * static_cast<double>(values.size())))
          << name;
  }
}

TEST(Inspect, DescribesAModel) {
  const TemporaryDirectory directory;
  ASSERT_EQ(import(kGolden / "qwen2_tied_bf16", directory / "m.h5").status, 0);
  const auto outcome =
      run(fmt::format("inspect '{}' --tensors --json", (directory / "m.h5").string()));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  const RawModel model = raw_model(kGolden / "qwen2_tied_bf16");
  std::size_t elements = 0;
  for (const auto& [name, tensor] : model) elements += tensor.bytes.size() / 2;
  EXPECT_EQ(json["kind"], "model");
  EXPECT_EQ(json["parameters"], elements);
  EXPECT_EQ(json["parameter_tensors"], model.size());
  EXPECT_EQ(json["dtypes"], (Json{{"bf16", model.size()}}));
  EXPECT_EQ(json["checksums"], true);
  EXPECT_EQ(json["config"]["model_type"], "qwen2");
  EXPECT_EQ(json["tensors"].size(), model.size());
  const auto text = run(fmt::format("inspect '{}'", (directory / "m.h5").string()));
  EXPECT_EQ(text.status, 0);
  EXPECT_THAT(text.out, HasSubstr(fmt::format("{}", elements)));
  // Every key that is printed is told by --help.
  const auto help = run("inspect --help");
  for (const auto& [key, value] : json.items()) EXPECT_THAT(help.out, HasSubstr(key));
}

TEST(Inspect, DescribesRollouts) {
  const TemporaryDirectory directory;
  write_file(directory / "r.jsonl",
             R"({"group":"g0","prompt_ids":[1,2,3],"responses":[{"ids":[10,11],"reward":1.0},)"
             R"({"ids":[20,21,22],"reward":0.0,"loss_mask":[1,0,1],"truncated":true}]})"
             "\n"
             R"({"group":"g1","prompt_ids":[1],"responses":[{"ids":[],"reward":0.5}]})"
             "\n");
  const std::string file = (directory / "r.jsonl").string();
  const auto outcome = run(fmt::format("inspect '{}' --json", file));
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json["kind"], "rollouts");
  EXPECT_EQ(json["groups"], 2);
  EXPECT_EQ(json["responses"], 3);
  EXPECT_EQ(json["prompt_tokens"], (Json{{"least", 1.0}, {"mean", 2.0}, {"most", 3.0}}));
  EXPECT_EQ(json["loss_tokens"], 4);
  EXPECT_EQ(json["truncated_responses"], 1);
  EXPECT_EQ(json["groups_with_reward_spread"], 1);
  EXPECT_EQ(json["reward"]["mean"], 0.5);
  EXPECT_EQ(json["largest_id"], 22);
  EXPECT_EQ(json["rows_grouped"], 3 + 2 + 3 + 1);  // prompts once
  EXPECT_EQ(json["rows_repeated"], 5 + 6 + 1);
  const auto help = run("inspect --help");
  for (const auto& [key, value] : json.items()) EXPECT_THAT(help.out, HasSubstr(key));
  EXPECT_EQ(run(fmt::format("inspect '{}' --tensors", file)).status, 2);
  write_file(directory / "r.jsonl", "{}\n");
  EXPECT_EQ(run(fmt::format("inspect '{}'", file)).status, 2);
  EXPECT_EQ(run(fmt::format("inspect '{}'", (directory / "missing").string())).status, 2);
}

TEST(Inspect, SaysThatItsOutputIsLost) {
  const TemporaryDirectory directory;
  ASSERT_EQ(import(kGolden / "llama_tied", directory / "m.h5").status, 0);
  const auto command = fmt::format("'{}' inspect '{}' >/dev/full 2>/dev/null", COPPICE_PROGRAM,
                                   (directory / "m.h5").string());
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
}

TEST(Inspect, RefusesADamagedFile) {
  const TemporaryDirectory directory;
  ASSERT_EQ(import(kGolden / "llama_tied", directory / "m.h5").status, 0);
  const std::string bytes = read_file(directory / "m.h5");
  write_file(directory / "m.h5", bytes.substr(0, bytes.size() / 2));
  for (const std::string command : {"inspect '{}'", "export --out x --checkpoint '{}'"}) {
    const auto outcome = run(fmt::format(fmt::runtime(command), (directory / "m.h5").string()));
    EXPECT_EQ(outcome.status, 2);
    EXPECT_THAT(outcome.err, HasSubstr("m.h5"));
  }
}

}  // namespace
}  // namespace coppice
