#include "launch/run_config_text.hpp"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <utility>

#include "launch/config_value.hpp"

namespace coppice {
namespace {

namespace pb = google::protobuf;
using pb::FieldDescriptor;
using pb::io::Tokenizer;

std::string joined(const std::string& path, const std::string& name) {
  return path.empty() ? name : path + "." + name;
}

std::string unknown_field(const std::string& path, const pb::Descriptor& block,
                          const std::string& whole) {
  const auto dot = path.rfind('.');
  const std::string where = dot == path.npos ? whole : path.substr(0, dot);
  return fmt::format("no such field. Fields of {}: {}.", where, names_of(block));
}

}  // namespace

// Walks one file: fields, blocks, values. After a fault it goes on with the next line.
class RunConfigScanner : public pb::io::ErrorCollector {
 public:
  RunConfigScanner(RunConfigText& config, std::string_view text)
      : config_(config),
        stream_(text.data(), static_cast<int>(text.size())),
        tokens_(&stream_, this) {
    tokens_.set_comment_style(Tokenizer::SH_COMMENT_STYLE);
    tokens_.set_allow_f_after_float(true);
    tokens_.Next();
  }

  void file() {
    fields(config_.message_, "");
    while (!at_end()) {  // only a closing brace without its opening one ends fields() early
      fault("this } closes nothing. Remove it.");
      tokens_.Next();
      fields(config_.message_, "");
    }
  }

 private:
  const Tokenizer::Token& token() { return tokens_.current(); }
  bool at_end() { return token().type == Tokenizer::TYPE_END; }
  bool at(std::string_view text) { return !at_end() && token().text == text; }
  bool take(std::string_view text) {
    if (!at(text)) return false;
    tokens_.Next();
    return true;
  }
  std::string place(int line, int column) const {
    return fmt::format("{}:{}:{}", config_.file_name_, line + 1, column + 1);
  }
  void AddError(int line, pb::io::ColumnNumber column, const std::string& message) override {
    config_.problems_->add("{}: {}", place(line, column), message);
  }
  void fault(const std::string& message) {
    config_.problems_->add("{}: {}", place(token().line, token().column), message);
  }
  void skip_line() {
    const int line = token().line;
    while (!at_end() && token().line == line && !at(closing_)) tokens_.Next();
  }

  // `message` is null inside a block that is unknown: then nothing is stored or reported but
  // faults.
  void fields(pb::Message* message, const std::string& path) {
    while (!at_end() && !at(closing_)) {
      if (token().type != Tokenizer::TYPE_IDENTIFIER) {
        fault(fmt::format("a field's name should stand here, not {}.", token().text));
        skip_line();
        continue;
      }
      field(message, path);
      if (!take(",")) take(";");
    }
  }

  void field(pb::Message* message, const std::string& outer) {
    const std::string name = token().text, path = joined(outer, name);
    const std::string where = place(token().line, token().column);
    const int line = token().line;
    tokens_.Next();
    const FieldDescriptor* known = nullptr;
    if (message != nullptr) {
      known = message->GetDescriptor()->FindFieldByName(name);
      config_.places_[path] = where;
      if (known == nullptr)
        config_.add_problem(path, unknown_field(path, *message->GetDescriptor(), config_.what_));
    }
    const bool colon = take(":");
    if (at("{") || at("<")) return block(message, known, path, where);
    if (colon && at("[") && known != nullptr && known->is_repeated())
      return list(*message, *known, path);
    if (!colon) {
      config_.problems_->add("{}: {}: a colon and a value, or a block in braces, should follow.",
                             where, path);
      if (!at_end() && token().line == line) skip_line();
      return;
    }
    const std::string value = value_text(line);
    if (value.empty())
      config_.problems_->add("{}: {}: its value is missing.", where, path);
    else if (known != nullptr)
      scalar(*message, *known, element(*message, *known, path, where), value);
  }

  // The path of a value: that of its field, with its place where the field has many.
  std::string element(const pb::Message& message, const FieldDescriptor& known,
                      const std::string& path, const std::string& where) {
    if (!known.is_repeated()) return path;
    const int place = message.GetReflection()->FieldSize(message, &known);
    const std::string indexed = fmt::format("{}[{}]", path, place);
    config_.places_[indexed] = where;
    return indexed;
  }

  // [value, value] or [{ ... }, { ... }] of a repeated field.
  void list(pb::Message& message, const FieldDescriptor& known, const std::string& path) {
    tokens_.Next();
    while (!at_end() && !at("]") && !at(closing_)) {
      const std::string where = place(token().line, token().column);
      if (at("{") || at("<")) {
        block(&message, &known, path, where);
      } else {
        const std::string value = value_text(token().line);
        if (value.empty()) break;
        scalar(message, known, element(message, known, path, where), value);
      }
      if (!take(",")) break;
    }
    if (take("]")) return;
    fault(fmt::format("{}: a comma or the ] of its list should stand here.", path));
    skip_line();
  }

  void block(pb::Message* message, const FieldDescriptor* known, std::string path,
             const std::string& where) {
    pb::Message* inner = nullptr;
    if (known != nullptr) {
      path = element(*message, *known, path, where);
      if (known->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE)
        inner = known->is_repeated() ? message->GetReflection()->AddMessage(message, known)
                                     : message->GetReflection()->MutableMessage(message, known);
      else
        config_.add_problem(path, fmt::format("takes {}, not a block.", wanted(*known)));
    }
    if (++depth_ > kDeepest) {
      config_.problems_->add("{}: blocks are nested too deeply to be read on. Close them.", where);
      while (!at_end()) tokens_.Next();
      return;
    }
    const std::string_view outer_closing = std::exchange(closing_, at("<") ? ">" : "}");
    tokens_.Next();
    fields(inner, path);
    --depth_;
    const std::string_view closing = std::exchange(closing_, outer_closing);
    if (depth_ > 0 && at_end() && !config_.problems_->empty()) return;  // told for the inner one
    if (!take(closing))
      config_.problems_->add("{}: {}: the brace opened here is never closed. Add a {}.", where,
                             path, closing);
  }

  void scalar(pb::Message& message, const FieldDescriptor& known, const std::string& path,
              const std::string& value) {
    if (known.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE)
      config_.add_problem(path, fmt::format("is a block. Write {} {{ ... }} with its fields: {}.",
                                            known.name(), names_of(*known.message_type())));
    else if (!store(value, known, message))
      config_.add_problem(path, fmt::format("{} is not {}.", value, wanted(known)));
  }

  // The tokens of one value: a sign and a number, a word, strings in a row, or a list in brackets.
  std::string value_text(int line) {
    std::string text;
    if (at("[")) {
      while (!at_end() && !at("]")) text += take_text();
      if (at("]")) text += take_text();
      return text;
    }
    if (at("-")) text = take_text();
    if (token().type == Tokenizer::TYPE_STRING) {
      while (token().type == Tokenizer::TYPE_STRING) text += take_text();
      return text;
    }
    // A word on a later line is the next field's name, not this one's value.
    if (at_end() || at(closing_) || token().line != line) return text;
    return text + take_text();
  }
  std::string take_text() {
    std::string text = token().text;
    tokens_.Next();
    return text;
  }

  static constexpr int kDeepest = 64;  // blocks nest two deep; the rest is damage

  RunConfigText& config_;
  int depth_ = 0;
  std::string_view closing_ = "}";  // of the block at hand: text format also writes < ... >
  pb::io::ArrayInputStream stream_;
  Tokenizer tokens_;
};

void RunConfigText::read(std::string_view name, std::string_view text) {
  file_name_ = name;
  RunConfigScanner(*this, text).file();
}

void RunConfigText::set(std::string_view assignment) {
  const std::string place = fmt::format("--set {}", assignment);
  const auto equals = assignment.find('=');
  if (equals == assignment.npos || equals == 0)
    problems_->add("{}: should read path.to.field=value.", place);
  else
    set_flag(std::string(assignment.substr(0, equals)), std::string(assignment.substr(equals + 1)),
             place);
}

void RunConfigText::set_flag(const std::string& path, const std::string& value,
                             const std::string& place) {
  const auto refuse = [&](const std::string& text) { problems_->add("{}: {}", place, text); };
  pb::Message* message = message_;
  for (std::size_t begin = 0;;) {
    const auto dot = path.find('.', begin);
    const bool last = dot == path.npos;
    const std::string so_far = path.substr(0, dot);
    const auto* field = message->GetDescriptor()->FindFieldByName(path.substr(begin, dot - begin));
    if (field == nullptr) return refuse(unknown_field(so_far, *message->GetDescriptor(), what_));
    const bool is_block = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (is_block && field->is_repeated())
      return refuse(fmt::format("{} has several blocks. Give them in the file.", so_far));
    if (last && is_block)
      return refuse(fmt::format("{} is a block. Set one of its fields: {}.", path,
                                names_of(*field->message_type())));
    if (!last && !is_block) return refuse(fmt::format("{} is not a block.", so_far));
    if (last) {
      places_[path] = place;
      const bool bare_text = field->cpp_type() == FieldDescriptor::CPPTYPE_STRING &&
                             (value.empty() || (value[0] != '"' && value[0] != '\''));
      // A shell's user quotes names as readily as text.
      const bool quoted_enum =
          field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM && is_quoted(value);
      if (bare_text)
        message->GetReflection()->SetString(message, field, value);
      else if (!store(quoted_enum ? value.substr(1, value.size() - 2) : value, *field, *message))
        refuse(fmt::format("{} is not {}.", value.empty() ? "nothing" : value, wanted(*field)));
      return;
    }
    message = message->GetReflection()->MutableMessage(message, field);
    begin = dot + 1;
  }
}

std::string RunConfigText::place(const std::string& path) const {
  if (const auto found = places_.find(path); found != places_.end()) {
    const bool by_flag = found->second.rfind("--", 0) == 0;
    return by_flag ? found->second : fmt::format("{}: {}", found->second, path);
  }
  return file_name_.empty() ? path : fmt::format("{}: {}", file_name_, path);
}

void RunConfigText::add_problem(const std::string& path, std::string_view text) {
  problems_->add("{}: {}", place(path), text);
}

}  // namespace coppice
