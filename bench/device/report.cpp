#include "device/report.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <exception>

namespace coppice::bench {

using nlohmann::json;

void Report::tell(json line) {
  const std::string text = json_ ? line.dump() : line.at("text").get<std::string>();
  fmt::print("{}\n", text);
  std::fflush(stdout);  // whoever reads this may have to end us
}

double Report::seconds_left() const {
  const std::chrono::duration<double> gone = std::chrono::steady_clock::now() - begin_;
  return seconds_ - gone.count();
}

void Report::note(const std::string& text, json values) {
  values["text"] = text;
  tell(std::move(values));
}

void Report::run(const std::string& name, const std::function<json()>& work) {
  // A case is about as long as those before it. Better left out than cut off.
  if (seconds_left() < 1.5 * longest_ || seconds_left() <= 0) {
    all_right_ = false;
    return tell({{"case", name},
                 {"ok", false},
                 {"problem", "left out: no time"},
                 {"text", fmt::format("{}: LEFT OUT, no time", name)}});
  }
  const double before = seconds_left();
  json line;
  try {
    line = work();
    line["ok"] = true;
  } catch (const std::exception& error) {
    all_right_ = false;
    line = {{"ok", false},
            {"problem", error.what()},
            {"text", fmt::format("FAILED: {}", error.what())}};
  }
  longest_ = std::max(longest_, before - seconds_left());
  line["case"] = name;
  line["host_seconds"] = before - seconds_left();
  line["text"] = fmt::format("{}: {}", name, line.at("text").get<std::string>());
  tell(std::move(line));
}

}  // namespace coppice::bench
