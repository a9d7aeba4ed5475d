#pragma once
// How far long work is, on standard error: a bar with rate and time left on a terminal, elsewhere
// one line per step. The only place that writes progress; results go to standard output.
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace coppice {

class Progress {
 public:
  /// `unit` is what is counted, in the singular: "step". `done` is where the work starts.
  explicit Progress(std::string unit, std::int64_t total = 0, std::int64_t done = 0);
  /// Ends the bar's line.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// For work whose size shows only after it has begun.
  void set_total(std::int64_t total) { total_ = total; }
  /// `done` of the total are done; `text` is what else to say about this one.
  /// `seconds_left` is for work whose parts differ much; else they count as alike.
  void update(std::int64_t done, std::string_view text = {},
              std::optional<double> seconds_left = {});
  /// What is done now, on the bar alone.
  void show(std::int64_t done, std::string_view text, std::optional<double> seconds_left = {});
  /// A line of its own, above the bar.
  void note(std::string_view line);

 private:
  void show_bar(std::int64_t done, std::string_view text, std::optional<double> seconds_left);
  void clear_bar();

  std::string unit_;
  std::int64_t total_;
  std::int64_t first_;
  bool bar_;
  bool bar_shown_ = false;
  std::chrono::steady_clock::time_point begin_;
};

/// "2 h 03 min", "4 min 05 s", "7 s"
std::string readable_duration(double seconds);

}  // namespace coppice
