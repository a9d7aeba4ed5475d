#pragma once
// The points of a study as points.jsonl holds them, brought together: repetitions of a point,
// grouped beside repeated, and what each point's loss and gradient are held against. What becomes
// of them on a page is study_tables' and study_plots' business.
#include <compare>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel/process_grid.hpp"

namespace coppice {

/// What groups, whatever runs them.
struct Workload {
  std::string model;                                     ///< empty: the study has one
  std::optional<double> prefix_length, response_length;  ///< tokens; absent: groups as recorded
  auto operator<=>(const Workload&) const = default;
};

/// What a plot or a block of a table holds fixed.
struct Setting {
  Workload workload;
  std::string recompute;
  GridSizes grid;
  auto operator<=>(const Setting&) const = default;
};

/// All repetitions of one point.
struct StudyPoint {
  Setting setting;
  std::optional<double> group_size;
  std::string sharing;  ///< GROUPED, REPEATED or what the line says

  /// What each repetition that is done tells: a metric's value by its name, those of an object as
  /// "seconds.forward".
  std::vector<std::map<std::string, double>> done;
  std::int64_t out_of_memory = 0, failed = 0;  ///< repetitions
  std::vector<std::string> errors;             ///< each once

  std::int64_t repetitions() const {
    return static_cast<std::int64_t>(done.size()) + out_of_memory + failed;
  }
  /// Median, least and most over what is done.
  std::optional<double> figure(const std::string& name) const;
  std::optional<double> least(const std::string& name) const;
  std::optional<double> most(const std::string& name) const;
  /// prefix length / mean response length
  std::optional<double> ratio() const;
  /// "ok", "out of memory", "failed", or how many of each.
  std::string status() const;
};

/// The largest group size that fits a memory budget, of one setting and sharing.
struct LargestGroup {
  Setting setting;
  std::string sharing;
  std::optional<double> memory_budget_bytes, largest_group_size, predicted_memory_bytes;
  bool bounded = false;  ///< the search ended there; larger ones may fit
  std::string error;     ///< why there was no search
};

struct Study {
  std::vector<StudyPoint> points;  ///< by setting, group size, sharing
  std::vector<LargestGroup> searches;
  std::vector<std::string> machines, versions, commands;  ///< each once, as lines tell them
  bool torn = false;  ///< the last line of points.jsonl is not whole and left out

  /// The point of the same setting and group size with that sharing.
  const StudyPoint* find(const Setting& setting, std::optional<double> group_size,
                         const std::string& sharing) const;
  /// What `point` is compared with: of the same workload and group size, done, the repeated one
  /// before the grouped, then fewest ranks, then the order of the points. Maybe `point` itself.
  const StudyPoint* reference_of(const StudyPoint& point) const;
};

/// Errors    DataError with every line that is no point, or where there is none; IoError
Study read_study(const std::filesystem::path& out_dir);

}  // namespace coppice
