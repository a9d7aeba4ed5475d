#pragma once
// Reads Protocol Buffers text format into a message and reports everything that is wrong with it,
// with file, line, column and field path. The library's own parser stops at the first fault, so the
// structure is walked here with the library's tokenizer, and each value is handed to the library.
#include <google/protobuf/message.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace coppice {

/// One config while it is read: a file, then `--set` overrides. Blocks merge, the last value wins;
/// a repeated field takes lists, and what is given again adds to it. Values of a repeated field
/// have paths like sweep.group_size[2].
class RunConfigText {
 public:
  /// Both must outlive this object. `what` is the whole in messages.
  RunConfigText(google::protobuf::Message& message, Problems& problems,
                std::string what = "a run config")
      : message_(&message), problems_(&problems), what_(std::move(what)) {}

  /// Reads a whole file's text. `name` stands in messages.
  void read(std::string_view name, std::string_view text);
  /// Reads "path.to.field=value"; enums and strings may be unquoted.
  void set(std::string_view assignment);
  /// The same for a flag that stands for a field; `place` is the flag as it was given.
  void set_flag(const std::string& path, const std::string& value, const std::string& place);

  /// True if the field was given, even with a value that was refused.
  bool given(const std::string& path) const { return places_.count(path) != 0; }
  /// How a message about a field begins: "run.textproto:12:3: loss.clip_low", the assignment of
  /// `--set`, or, where the field was not given, the file's name and the path.
  std::string place(const std::string& path) const;
  /// Adds a problem with a field. The text says what is wrong and what to do.
  void add_problem(const std::string& path, std::string_view text);

 private:
  friend class RunConfigScanner;
  google::protobuf::Message* message_;
  Problems* problems_;
  std::string what_;
  std::string file_name_;
  std::map<std::string, std::string> places_;  // field path -> where it was last given
};

}  // namespace coppice
