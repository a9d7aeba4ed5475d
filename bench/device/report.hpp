#pragma once
// The results of a bench on a device, each told the moment it is known: a line of text, or a JSON
// object that holds that line too, for launch/device_check. A case that fails, or for which no time
// is left, is told and does not stop the others.
#include <chrono>
#include <functional>
#include <string>

#include <nlohmann/json.hpp>

namespace coppice::bench {

class Report {
 public:
  /// `seconds` is all the time there is, from now on.
  Report(bool json, double seconds) : json_(json), seconds_(seconds) {}

  /// Something that is no result: headings, what the device is.
  void note(const std::string& text, nlohmann::json values = nlohmann::json::object());
  /// Runs one case and tells what it returns. It throws if its result is wrong; a text that it
  /// returns as "text" is what is printed.
  void run(const std::string& name, const std::function<nlohmann::json()>& work);

  double seconds_left() const;
  bool all_right() const { return all_right_; }

 private:
  void tell(nlohmann::json line);

  bool json_;
  double seconds_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  double longest_ = 0;
  bool all_right_ = true;
};

}  // namespace coppice::bench
