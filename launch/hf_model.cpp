#include "launch/hf_model.hpp"

#include <optional>

#include "checkpoint/small_file.hpp"
#include "core/error.hpp"
#include "launch/hf_directory.hpp"
#include "launch/model_tensors.hpp"

namespace coppice {
namespace {

// Runs `f`; an InputError becomes lines of `problems` and no value.
template <class F>
auto collect(Problems& problems, const F& f) -> std::optional<decltype(f())> {
  try {
    return f();
  } catch (const InputError& error) {
    problems.add_all(error.problems());
    return std::nullopt;
  }
}

}  // namespace

HfModel open_hf_model(const std::filesystem::path& directory) {
  Problems problems;
  const auto path = directory / "config.json";
  const auto json = collect(problems, [&] { return read_small_file(path); });
  auto config = !json ? std::nullopt
                      : collect(problems, [&] { return ModelConfig::parse(*json, path.string()); });
  auto files = collect(problems, [&] { return SafetensorsModel(directory); });
  auto tokenizer = collect(problems, [&] { return tokenizer_files_of(directory); });
  std::vector<HfWeight> weights;
  if (config && files)
    weights = match_hf_weights(*files, tensors_of(*config),
                               config->tie_word_embeddings ? TiedHead::kYes : TiedHead::kNo,
                               directory.string(), problems);
  problems.throw_if_any<DataError>();
  return {directory, std::move(*config), std::move(*files), std::move(*tokenizer),
          std::move(weights)};
}

}  // namespace coppice
