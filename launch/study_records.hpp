#pragma once
// What a study has found out so far: one record for every run of a point, in points.jsonl. A line
// is appended in one write when its run has ended, so a study that dies at any moment loses only
// what it was doing.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launch/study_sweep.hpp"

namespace coppice {

/// "ok", "out_of_memory", "failed"
namespace study_status {
inline constexpr std::string_view kOk = "ok";
inline constexpr std::string_view kOutOfMemory = "out_of_memory";
inline constexpr std::string_view kFailed = "failed";
}  // namespace study_status

/// Figures by name, in the order they are written; "seconds.forward" is `forward` of the object
/// `seconds`.
using StudyFigures = std::vector<std::pair<std::string, double>>;

struct StudyRecord {
  StudyRun run;
  std::string status, error;  ///< error: "" with "ok"
  StudyFigures figures;

  bool ok() const { return status == study_status::kOk; }
  std::optional<double> figure(std::string_view name) const;
};

enum class WithGroupSize { kNo, kYes };

/// The sweep's values of a point as the keys and values of a JSON object, without its braces.
/// `models` are the names of several models; empty where there is one.
std::string json_keys_of(const SweepPoint& point, const std::vector<std::string>& models,
                         WithGroupSize with_group_size);

/// What every line tells beside its run.
struct StudyOrigin {
  std::string machine, version, command;
};

class StudyRecords {
 public:
  /// Reads what is there; a torn last line, which a dead study left, is cut off.
  ///
  /// Errors    DataError with every line that is no record of one of `points`; IoError
  StudyRecords(std::filesystem::path path, const std::vector<SweepPoint>& points,
               std::vector<std::string> models, StudyOrigin origin = {});
  ~StudyRecords();
  StudyRecords(const StudyRecords&) = delete;
  StudyRecords& operator=(const StudyRecords&) = delete;

  const std::vector<StudyRecord>& all() const { return records_; }
  bool has(const StudyRun& run) const;
  /// A run of the point that did not end well: what follows of it is left out.
  bool has_failed(std::size_t point) const;

  /// Errors    IoError; then the file holds nothing of the record, or a torn line
  void append(StudyRecord record);

 private:
  void keep(StudyRecord record);

  std::filesystem::path path_;
  const std::vector<SweepPoint>& points_;
  std::vector<std::string> models_;
  StudyOrigin origin_;
  std::vector<StudyRecord> records_;
  std::set<std::pair<std::size_t, std::int64_t>> done_;  // point, repetition
  std::set<std::size_t> failed_;
  int file_ = -1;
};

}  // namespace coppice
