// What import and export need of memory does not grow with the model: the largest resident size
// of each, for a model of 200 MiB whose largest tensor has 8 MiB, above that for a tiny one.
// Seen red: tensors kept until the end.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "launch/model_tensors.hpp"
#include "support/temporary_directory.hpp"

namespace coppice::test {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

// Runs the program; its largest resident size in bytes.
std::int64_t peak_of(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), COPPICE_PROGRAM);
  std::vector<char*> argv;
  for (auto& word : arguments) argv.push_back(word.data());
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(open("/dev/null", O_WRONLY), STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  int status = -1;
  rusage usage{};
  wait4(pid, &status, 0, &usage);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << arguments[1];
  return usage.ru_maxrss * std::int64_t{1024};
}

struct Model {
  std::int64_t bytes = 0, largest = 0;
};

// A directory of zeros, which take no disk.
Model make_model(const fs::path& directory, int layers, int hidden, int intermediate) {
  fs::create_directory(directory);
  const nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                                 {"hidden_size", hidden},
                                 {"intermediate_size", intermediate},
                                 {"num_hidden_layers", layers},
                                 {"num_attention_heads", 8},
                                 {"num_key_value_heads", 2},
                                 {"head_dim", hidden / 8},
                                 {"vocab_size", 100},
                                 {"tie_word_embeddings", true}};
  write_file(directory / "config.json", config.dump());
  Model model;
  nlohmann::json header;
  for (const auto& [name, shape] : tensors_of(ModelConfig::parse(config.dump(), "config.json"))) {
    const std::int64_t bytes = 4 * shape.numel();
    header[name] = {{"dtype", "F32"}, {"shape", nlohmann::json::array()}};
    for (const std::int64_t extent : shape.extents()) header[name]["shape"].push_back(extent);
    header[name]["data_offsets"] = {model.bytes, model.bytes + bytes};
    model.bytes += bytes;
    model.largest = std::max(model.largest, bytes);
  }
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  const auto path = directory / "model.safetensors";
  write_file(path, std::string(reinterpret_cast<const char*>(&length), 8) + text);
  fs::resize_file(path, 8 + length + static_cast<std::uint64_t>(model.bytes));
  return model;
}

TEST(ConversionMemory, IsAtMostTwiceTheLargestTensorForAModelOfAnySize) {
  const TemporaryDirectory directory;
  make_model(directory / "tiny", 1, 16, 16);
  const Model large = make_model(directory / "large", 6, 1024, 2048);
  ASSERT_GT(large.bytes, 20 * large.largest);
  const auto growth = [&](const char* command, const std::vector<std::string>& more) {
    std::int64_t peaks[2];
    for (const int i : {0, 1}) {
      const std::string name = i == 0 ? "tiny" : "large";
      std::vector<std::string> arguments = {command};
      for (std::string word : more) {
        if (const auto at = word.find('*'); at != word.npos)
          word = directory / (word.substr(0, at) + name + word.substr(at + 1));
        arguments.push_back(word);
      }
      peaks[i] = peak_of(arguments);
    }
    std::printf("%s: %.1f MiB, %.1f MiB above a tiny model\n", command,
                static_cast<double>(peaks[1]) / kMiB,
                static_cast<double>(peaks[1] - peaks[0]) / kMiB);
    return peaks[1] - peaks[0];
  };
  EXPECT_LE(growth("import", {"--hf", "*", "--out", "*.h5"}), 2 * large.largest);
  EXPECT_LE(growth("export", {"--checkpoint", "*.h5", "--out", "*-f32"}), 2 * large.largest);
  EXPECT_LE(growth("export", {"--checkpoint", "*.h5", "--out", "*-bf16", "--dtype", "bf16",
                              "--max-shard-size", "50MiB"}),
            2 * large.largest);
}

}  // namespace
}  // namespace coppice::test
