#include "launch/tensorboard_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "configs/tensorboard_event.pb.h"
#include "core/error.hpp"
#include "launch/tensorboard_record.hpp"
#include "launch/tensorboard_tags.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;
using tensorboard::Event;

constexpr std::string_view kPrefix = "events.out.tfevents.";

double unix_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// The event files of a run, oldest first: their names begin with when they were made.
std::vector<fs::path> event_files(const fs::path& run_dir) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run_dir, error))
    if (entry.path().filename().string().starts_with(kPrefix)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

std::int64_t time_in_name(const fs::path& file) {
  return std::atoll(file.filename().string().c_str() + kPrefix.size());
}

// The last step that the newest file with steps holds; 0 where none does.
std::int64_t last_written_step(const fs::path& run_dir) {
  auto files = event_files(run_dir);
  for (auto file = files.rbegin(); file != files.rend(); ++file) {
    std::ifstream stream(*file, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
    const auto records = records_of(bytes);
    for (auto record = records.rbegin(); record != records.rend(); ++record) {
      Event event;
      if (event.ParseFromArray(record->data(), static_cast<int>(record->size())) &&
          event.has_summary())
        return event.step();
    }
  }
  return 0;
}

struct Line {
  std::int64_t step;
  std::string text;
};

// Lines of metrics.jsonl with after < step <= until.
std::vector<Line> metrics_lines(const fs::path& run_dir, std::int64_t after, std::int64_t until) {
  std::vector<Line> lines;
  std::ifstream file(run_dir / "metrics.jsonl", std::ios::binary);
  for (std::string text; std::getline(file, text);) {
    const auto json = nlohmann::json::parse(text, nullptr, false);
    if (!json.is_object()) continue;  // torn
    const auto step = json.value("step", std::int64_t{0});
    if (step > after && step <= until) lines.push_back({step, text});
  }
  return lines;
}

std::string record_of(Event event, std::int64_t step) {
  event.set_wall_time(unix_seconds());
  event.set_step(step);
  return framed_record(event.SerializeAsString());
}

}  // namespace

TensorboardFile::TensorboardFile(fs::path run_dir, std::int64_t last_step, std::string host)
    : run_dir_(std::move(run_dir)), last_step_(last_step), host_(std::move(host)) {}

TensorboardFile::~TensorboardFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void TensorboardFile::settle() {
  if (settled_) return;
  settled_ = true;
  if (last_step_ == 0) return;
  for (const Line& line : metrics_lines(run_dir_, last_written_step(run_dir_), last_step_))
    put(line.step, line.text);
}

void TensorboardFile::write(const std::string& metrics_line) {
  settle();
  put(nlohmann::json::parse(metrics_line).at("step").get<std::int64_t>(), metrics_line);
}

// TensorBoard reads a run's files in the order of their names, so a later one has a later time even
// where the clock disagrees.
void TensorboardFile::open(std::int64_t first_step) {
  auto seconds = static_cast<std::int64_t>(unix_seconds());
  const auto older = event_files(run_dir_);
  if (!older.empty()) seconds = std::max(seconds, time_in_name(older.back()) + 1);
  path_ = run_dir_ / fmt::format("{}{:010}.{}.{}", kPrefix, seconds, host_, getpid());
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor_ < 0)
    throw IoError(fmt::format(
        "{} cannot be made: {} (TensorBoard reads the metrics there). Make its directory writable.",
        path_.string(), std::strerror(errno)));
  Event version, start;
  version.set_file_version("brain.Event:2");
  start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  append(record_of(version, 0) + record_of(start, first_step));
}

void TensorboardFile::append(const std::string& bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::write(descriptor_, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0)
      throw IoError(fmt::format("{}: writing a step failed: {}. Free space on the disk.",
                                path_.string(), std::strerror(errno)));
    done += static_cast<std::size_t>(count);
  }
}

void TensorboardFile::put(std::int64_t step, const std::string& metrics_line) {
  if (descriptor_ < 0) open(step);
  Event event;
  for (const auto& [tag, unit, value] : tagged_values(metrics_line)) {
    auto& entry = *event.mutable_summary()->add_value();
    entry.set_tag(tag);
    entry.set_simple_value(static_cast<float>(value));
    if (!described_.insert(tag).second) continue;
    auto& metadata = *entry.mutable_metadata();
    metadata.mutable_plugin_data()->set_plugin_name("scalars");
    metadata.set_summary_description(fmt::format("{}{}. See docs/metrics.md of Coppice.",
                                                 tag.substr(tag.rfind('/') + 1),
                                                 unit.empty() ? "" : " (" + unit + ")"));
  }
  append(record_of(std::move(event), step));
}

}  // namespace coppice
