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
  /// False also where `ids` is no array: there is nothing to compare other fields with.
  bool has_ids = false;
  bool has_mask = false, has_old = false, has_ref = false, has_advantages = false;
};

/// A problem of one line; response -1: of the group.
struct LineProblem {
  std::int64_t response;
  std::string text;
};

struct ParsedLine {
  bool is_json_object = false;  ///< false: nothing but `problems` is set
  bool has_name = false;        ///< and it is a string
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
