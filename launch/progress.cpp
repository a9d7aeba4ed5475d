#include "launch/progress.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "launch/host.hpp"

namespace coppice {

std::string readable_duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::max(0.0, seconds)));
  if (whole >= 3600) return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
  if (whole >= 60) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} s", whole);
}

Progress::Progress(std::string unit, std::int64_t total, std::int64_t done)
    : unit_(std::move(unit)),
      total_(total),
      first_(done),
      bar_(shows_progress_bar()),
      begin_(std::chrono::steady_clock::now()) {
  if (bar_ && total_ > 0) show_bar(done, "", {});  // the first one may take long
}

Progress::~Progress() {
  if (bar_shown_) fmt::print(stderr, "\n");
}

void Progress::show(std::int64_t done, std::string_view text, std::optional<double> seconds_left) {
  if (bar_) show_bar(done, text, seconds_left);
}

void Progress::update(std::int64_t done, std::string_view text,
                      std::optional<double> seconds_left) {
  if (bar_)
    show_bar(done, text, seconds_left);
  else
    fmt::print(stderr, "{} {} of {}{}{}\n", unit_, done, total_, text.empty() ? "" : "  ", text);
}

void Progress::show_bar(std::int64_t done, std::string_view text,
                        std::optional<double> seconds_left) {
  constexpr int kWidth = 24;
  const double share =
      total_ > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total_), 0.0, 1.0)
                 : 1.0;
  const auto filled = static_cast<std::size_t>(share * kWidth);
  std::string line = fmt::format("[{}{}] {} {} of {}", std::string(filled, '#'),
                                 std::string(kWidth - filled, '.'), unit_, done, total_);
  if (seconds_left) {
    line += fmt::format("  {} left", readable_duration(*seconds_left));
  } else if (done > first_) {
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
    const double each = seconds / static_cast<double>(done - first_);
    line += each >= 1 ? fmt::format("  {:.3g} s each", each) : fmt::format("  {:.3g}/s", 1 / each);
    line += fmt::format("  {} left", readable_duration(static_cast<double>(total_ - done) * each));
  }
  if (!text.empty()) line += fmt::format("  {}", text);
  // A line that wraps could not be cleared.
  line.resize(std::min(line.size(), static_cast<std::size_t>(terminal_width() - 1)));
  clear_bar();
  fmt::print(stderr, "{}", line);
  std::fflush(stderr);
  bar_shown_ = true;
}

void Progress::note(std::string_view line) {
  clear_bar();
  fmt::print(stderr, "{}\n", line);
}

void Progress::clear_bar() {
  if (bar_shown_) fmt::print(stderr, "\r\x1b[K");
  bar_shown_ = false;
}

}  // namespace coppice
