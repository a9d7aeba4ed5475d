#pragma once
// What all our configs share below their structure, which run_config_text walks: one value between
// its text and its field in a message, how a refusal describes what the field takes, which fields
// two configs differ in, and the file they are read from.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace coppice {

/// "a whole number", "one of GROUPED, REPEATED": what a value of the field is.
std::string wanted(const google::protobuf::FieldDescriptor& field);

/// The fields of a block: "tensor, context, data".
std::string names_of(const google::protobuf::Descriptor& block);

/// Stores a value written in text format, behind those there are where the field is repeated; false
/// if it is none of the field's type.
bool store(const std::string& value, const google::protobuf::FieldDescriptor& field,
           google::protobuf::Message& message);

/// The value stands in quotes, double or single.
bool is_quoted(const std::string& value);

/// Sets every field that is absent and has a default in the schema, in all blocks.
void set_defaults(google::protobuf::Message& message);

/// The config in text format, which reads back as itself.
std::string config_text(const google::protobuf::Message& message);

struct ChangedField {
  std::string path;         ///< "optimizer.beta1"
  std::string before, now;  ///< as text format prints them; "not set"
};
/// Every field that differs between two configs of one schema, in the schema's order.
std::vector<ChangedField> changed_fields(const google::protobuf::Message& before,
                                         const google::protobuf::Message& now);

/// The text of a config's file, without a byte order mark. `what` is the kind: "a run config".
///
/// Errors    ConfigError where it cannot be read
std::string config_file_content(const std::filesystem::path& path, std::string_view what);

}  // namespace coppice
