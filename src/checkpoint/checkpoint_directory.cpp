#include "checkpoint/checkpoint_directory.hpp"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <system_error>

#include "checkpoint/pending_file.hpp"
#include "core/error.hpp"
#include "parallel/exchange.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;

std::optional<std::int64_t> step_of(const std::string& name) {
  constexpr std::string_view kPrefix = "step_", kSuffix = ".h5";
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) return std::nullopt;
  const char* begin = name.data() + kPrefix.size();
  const char* end = name.data() + name.size() - kSuffix.size();
  std::int64_t step = 0;
  const auto [stop, error] = std::from_chars(begin, end, step);
  if (error != std::errc{} || stop != end || checkpoint_file_name(step) != name)
    return std::nullopt;
  return step;
}

}  // namespace

std::string checkpoint_file_name(std::int64_t step) { return fmt::format("step_{:08}.h5", step); }

std::vector<fs::path> list_checkpoints(const fs::path& directory) {
  std::vector<std::pair<std::int64_t, fs::path>> found;
  std::error_code no_directory;
  for (const auto& entry : fs::directory_iterator(directory, no_directory)) {
    if (const auto step = step_of(entry.path().filename().string())) {
      found.emplace_back(*step, entry.path());
    }
  }
  std::ranges::sort(found);
  std::vector<fs::path> paths;
  for (auto& [step, path] : found) paths.push_back(std::move(path));
  return paths;
}

CheckpointSearch::CheckpointSearch(const fs::path& directory)
    : left_(list_checkpoints(directory)), has_any_(!left_.empty()) {}

CheckpointSearch::CheckpointSearch(const fs::path& directory, Communicator& world)
    : world_(&world) {
  // One rank looks: a directory may not look the same to all at the same time.
  std::string names;
  succeed_together(world, [&] {
    if (world.rank() != 0) return;
    for (const auto& path : list_checkpoints(directory)) names += path.filename().string() + "\n";
  });
  std::istringstream lines(broadcast_text(world, names));
  for (std::string name; std::getline(lines, name);) left_.push_back(directory / name);
  has_any_ = !left_.empty();
}

std::optional<CheckpointReader> CheckpointSearch::next() {
  while (!left_.empty()) {
    const fs::path path = std::move(left_.back());
    left_.pop_back();
    try {
      return world_ == nullptr ? CheckpointReader(path) : CheckpointReader(path, *world_);
    } catch (const InputError& error) {
      pass_over(error);
    }
  }
  return std::nullopt;
}

void CheckpointSearch::pass_over(const InputError& why) {
  const auto count = why.problems().size();
  passed_over_.push_back(
      fmt::format("passed over {}{}", why.problems().front(),
                  count > 1 ? fmt::format(" (and {} more problems)", count - 1) : std::string()));
}

void remove_old_checkpoints(const fs::path& directory, std::int64_t keep, std::int64_t newest) {
  remove_leftovers(directory);
  if (keep <= 0) return;
  auto paths = list_checkpoints(directory);
  std::erase_if(paths, [&](const fs::path& path) {
    return step_of(path.filename().string()).value_or(0) > newest;
  });
  for (std::int64_t i = 0; i + keep < std::ssize(paths); ++i) {
    std::error_code ignored;  // an old file that stays harms nobody
    fs::remove(paths[static_cast<std::size_t>(i)], ignored);
  }
}

}  // namespace coppice
