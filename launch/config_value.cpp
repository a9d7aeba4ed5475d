#include "launch/config_value.hpp"

#include <fmt/ranges.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <fstream>
#include <iterator>
#include <utility>

#include "core/error.hpp"

namespace coppice {
namespace {

namespace pb = google::protobuf;
using pb::FieldDescriptor;

// "not set" where an optional field has none; a repeated one is a list.
std::string text_of(const pb::Message& message, const FieldDescriptor& field) {
  const pb::Reflection& reflection = *message.GetReflection();
  const auto value = [&](int index) {
    std::string text;
    pb::TextFormat::PrintFieldValueToString(message, &field, index, &text);
    return text;
  };
  if (!field.is_repeated()) return reflection.HasField(message, &field) ? value(-1) : "not set";
  std::vector<std::string> values;
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) values.push_back(value(i));
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE)
    return fmt::format("[{}]", fmt::join(values, ", "));
  // A block is printed over lines.
  std::string text = fmt::format("[{{ {} }}]", fmt::join(values, "}, { "));
  for (auto& letter : text)
    if (letter == '\n') letter = ' ';
  return text;
}

void compare(const pb::Message& before, const pb::Message& now, const std::string& outer,
             std::vector<ChangedField>& changes) {
  const pb::Descriptor& descriptor = *before.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor* field = descriptor.field(i);
    const std::string path = outer.empty() ? field->name() : outer + "." + field->name();
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_repeated()) {
      compare(before.GetReflection()->GetMessage(before, field),
              now.GetReflection()->GetMessage(now, field), path, changes);
      continue;
    }
    std::string old_value = text_of(before, *field), new_value = text_of(now, *field);
    if (old_value != new_value)
      changes.push_back({path, std::move(old_value), std::move(new_value)});
  }
}

class Counting : public pb::io::ErrorCollector {
 public:
  void AddError(int, pb::io::ColumnNumber, const std::string&) override { ++errors; }
  int errors = 0;
};

}  // namespace

std::string names_of(const pb::Descriptor& block) {
  std::vector<std::string> names;
  for (int i = 0; i < block.field_count(); ++i) names.push_back(block.field(i)->name());
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string wanted(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return "a number";
    case FieldDescriptor::CPPTYPE_UINT64:
      return "a whole number, 0 or more";
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_STRING:
      return "text in quotes";
    case FieldDescriptor::CPPTYPE_ENUM: {
      std::vector<std::string> names;
      for (int i = 0; i < field.enum_type()->value_count(); ++i)
        names.push_back(field.enum_type()->value(i)->name());
      return fmt::format("one of {}", fmt::join(names, ", "));
    }
    default:
      return "a whole number";
  }
}

bool store(const std::string& value, const FieldDescriptor& field, pb::Message& message) {
  // An enum's number would be accepted too, but a name is what the next reader understands.
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_ENUM &&
      field.enum_type()->FindValueByName(value) == nullptr)
    return false;
  Counting faults;  // an open quote is one that does not end the parse
  pb::TextFormat::Parser parser;
  parser.RecordErrorsTo(&faults);
  return parser.ParseFieldValueFromString(value, &field, &message) && faults.errors == 0;
}

bool is_quoted(const std::string& value) {
  return value.size() >= 2 && (value.front() == '"' || value.front() == '\'') &&
         value.back() == value.front();
}

void set_defaults(pb::Message& message) {
  const auto& reflection = *message.GetReflection();
  const auto& descriptor = *message.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const auto* field = descriptor.field(i);
    if (field->is_repeated()) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE)
        for (int block = 0; block < reflection.FieldSize(message, field); ++block)
          set_defaults(*reflection.MutableRepeatedMessage(&message, field, block));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      set_defaults(*reflection.MutableMessage(&message, field));
    } else if (field->has_default_value() && !reflection.HasField(message, field)) {
      // Printing an absent field's default and reading it back stores it.
      std::string value;
      pb::TextFormat::PrintFieldValueToString(message, field, -1, &value);
      pb::TextFormat::ParseFieldValueFromString(value, field, &message);
    }
  }
}

std::string config_text(const pb::Message& message) {
  pb::TextFormat::Printer printer;
  printer.SetUseUtf8StringEscaping(true);
  std::string text;
  printer.PrintToString(message, &text);
  return text;
}

std::vector<ChangedField> changed_fields(const pb::Message& before, const pb::Message& now) {
  std::vector<ChangedField> changes;
  compare(before, now, "", changes);
  return changes;
}

std::string config_file_content(const std::filesystem::path& path, std::string_view what) {
  std::ifstream file(path, std::ios::binary);
  std::string content;
  std::error_code error;
  if (!file || std::filesystem::is_directory(path, error))
    throw ConfigError({fmt::format("{}: cannot be read as {}. Name a text file with --config.",
                                   path.string(), what)});
  content.assign(std::istreambuf_iterator<char>(file), {});
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (content.starts_with(kByteOrderMark)) content.erase(0, kByteOrderMark.size());
  return content;
}

}  // namespace coppice
