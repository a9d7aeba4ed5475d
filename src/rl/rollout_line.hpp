#pragma once
// One line of a rollouts file from text to a Group: JSON syntax, types, known fields. Everything
// that needs a second field, a second line or the command (lengths, vocabulary, needs) is left to
// rollouts.cpp.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "rl/rollouts.hpp"

namespace coppice {

struct ParsedResponse {
  Response response;
  bool has_ids = false, has_mask = false, has_old = false, has_ref = false, has_advantages = false;
  /// Set where a field had a problem of its own; checks on top of it would only repeat that.
  bool bad_ids = false;
};

/// A problem of one line; response -1: of the group.
struct LineProblem {
  std::int64_t response;
  std::string text;
};

struct ParsedLine {
  bool is_json_object = false;  ///< false: nothing but `problems` is set
  bool has_name = false;
  bool has_prompt = false;
  Group group;  ///< without responses, which are below
  std::vector<ParsedResponse> responses;
  std::vector<LineProblem> problems;
};

/// Memory    keeps one padded copy of the longest line
class RolloutLineParser {
 public:
  RolloutLineParser();
  ~RolloutLineParser();
  ParsedLine parse(const std::string& line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace coppice
