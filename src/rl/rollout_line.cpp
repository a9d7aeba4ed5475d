#include "rl/rollout_line.hpp"

#include <simdjson.h>

#include <cmath>
#include <limits>
#include <set>

#include "rl/json_number.hpp"

namespace coppice {
namespace {

namespace ondemand = simdjson::ondemand;
using simdjson::simdjson_error;

constexpr std::int64_t kOfTheGroup = -1;

enum class Token { kNull, kNumber, kInfinite, kWrongType, kNotJson };

// The text of a scalar as it stands in the line, shortened for messages.
std::string text_of(ondemand::value value) {
  std::string_view raw = value.raw_json_token();
  while (!raw.empty() && std::string_view(" \t\r\n").find(raw.back()) != std::string_view::npos)
    raw.remove_suffix(1);
  constexpr std::size_t kLongest = 24;
  return raw.size() <= kLongest ? std::string(raw) : std::string(raw.substr(0, kLongest)) + "...";
}

Token read_number(ondemand::value value, double& number) {
  ondemand::json_type type;
  if (value.type().get(type) != simdjson::SUCCESS) return Token::kNotJson;
  switch (type) {
    case ondemand::json_type::number: {
      if (value.get_double().get(number) == simdjson::SUCCESS) return Token::kNumber;
      std::string_view raw = value.raw_json_token();
      raw = raw.substr(0, raw.find_first_of(" \t\r\n"));
      // Refused with the same error: a number beyond double, and text that is none.
      if (!is_json_number(raw)) return Token::kNotJson;
      number = raw.front() == '-' ? -std::numeric_limits<double>::infinity()
                                  : std::numeric_limits<double>::infinity();
      return Token::kInfinite;
    }
    case ondemand::json_type::null: {
      bool null = false;
      return value.is_null().get(null) == simdjson::SUCCESS && null ? Token::kNull
                                                                    : Token::kNotJson;
    }
    default:
      return Token::kWrongType;
  }
}

// A field, or the parser's error thrown (`value()` of the result would be the field's value).
ondemand::field take(simdjson::simdjson_result<ondemand::field> result) {
  ondemand::field field;
  if (const auto error = std::move(result).get(field); error != simdjson::SUCCESS)
    throw simdjson_error(error);
  return field;
}

// Reads the fields of one line into a ParsedLine.
class LineReader {
 public:
  explicit LineReader(ParsedLine& out) : out_(out) {}

  void read(ondemand::document& document) {
    ondemand::object object;
    if (const auto error = document.get_object().get(object); error == simdjson::INCORRECT_TYPE)
      return problem("the line is not a JSON object (one line is one group).");
    else if (error != simdjson::SUCCESS)
      throw simdjson_error(error);
    std::set<std::string> seen;
    for (auto result : object) {
      ondemand::field field = take(std::move(result));
      const std::string key(std::string_view(field.unescaped_key()));
      ondemand::value value = field.value();
      if (!seen.insert(key).second) {
        problem("field \"{}\" stands twice. Keep one of them.", key);
      } else if (key == "group") {
        out_.has_name = read_string(value, "group", out_.group.name);
      } else if (key == "prompt_ids") {
        out_.has_prompt = true;
        read_ids(value, "prompt_ids", out_.group.prompt_ids);
      } else if (key == "responses") {
        has_responses_ = true;
        read_responses(value);
      } else {
        unknown(key, "group, prompt_ids, responses");
      }
    }
    if (!seen.contains("group")) problem("field \"group\" is missing. Give the group a name.");
    if (!out_.has_prompt) problem("field \"prompt_ids\" is missing (responses need a prompt).");
    if (!has_responses_) problem("field \"responses\" is missing.");
    out_.is_json_object = true;
  }

  template <class... Args>
  void problem(fmt::format_string<Args...> format, Args&&... args) {
    out_.problems.push_back({response_, fmt::format(format, std::forward<Args>(args)...)});
  }

 private:
  void unknown(const std::string& key, const char* known) {
    if (key == "branches" || key == "sampler_logprobs")
      problem("field \"{}\" is reserved for a later version. Remove it.", key);
    else
      problem("unknown field \"{}\" (nothing is ignored silently). Known here: {}.", key, known);
  }

  bool open_array(ondemand::value value, const char* field, const char* of,
                  ondemand::array& array) {
    if (value.get_array().get(array) == simdjson::SUCCESS) return true;
    problem("{} is not an array of {}.", field, of);
    return false;
  }

  // Reads an array with read(element, why) -> bool, where `why` receives what is wrong with a bad
  // element. Reports the first bad one and how many there are. False: it is no array.
  template <class Read>
  bool read_array(ondemand::value value, const char* field, const char* of, Read&& read) {
    ondemand::array array;
    if (!open_array(value, field, of, array)) return false;
    std::int64_t index = 0, bad = 0, first_bad = 0;
    std::string first_why, why;
    for (auto element : array) {
      if (!read(element.value(), why) && bad++ == 0) {
        first_bad = index;
        first_why = why;
      }
      ++index;
    }
    if (bad == 1) problem("{}[{}] {}.", field, first_bad, first_why);
    if (bad > 1) problem("{}[{}] {} (the first of {}).", field, first_bad, first_why, bad);
    return true;
  }

  bool read_ids(ondemand::value value, const char* field, std::vector<std::int32_t>& ids) {
    return read_array(value, field, "token ids", [&](ondemand::value element, std::string& why) {
      std::int64_t id = -1;
      const bool integer = element.get_int64().get(id) == simdjson::SUCCESS;
      const bool good = integer && id >= 0 && id <= std::numeric_limits<std::int32_t>::max();
      ids.push_back(good ? static_cast<std::int32_t>(id) : 0);
      if (integer && !good) why = fmt::format("= {} is no token id", id);
      if (!integer) why = fmt::format("= {} is not an integer token id", text_of(element));
      return good;
    });
  }

  // Values that may be null, or anything JSON calls a number, where the mask is 0; which of them
  // are needed is found out when the mask is known.
  void read_values(ondemand::value value, const char* field, std::vector<double>& values) {
    read_array(value, field, "numbers", [&](ondemand::value element, std::string& why) {
      double number = std::numeric_limits<double>::quiet_NaN();
      const Token token = read_number(element, number);
      values.push_back(number);
      if (token == Token::kWrongType) why = fmt::format("= {} is not a number", text_of(element));
      if (token == Token::kNotJson) why = fmt::format("= {} is bad JSON", text_of(element));
      return token != Token::kWrongType && token != Token::kNotJson;
    });
  }

  void read_mask(ondemand::value value, std::vector<std::uint8_t>& mask) {
    read_array(value, "loss_mask", "0 and 1", [&](ondemand::value element, std::string& why) {
      std::int64_t bit = -1;
      const bool good = element.get_int64().get(bit) == simdjson::SUCCESS && (bit == 0 || bit == 1);
      if (!good) why = fmt::format("= {} is neither 0 nor 1", text_of(element));
      mask.push_back(good && bit == 1);
      return good;
    });
  }

  void read_reward(ondemand::value value, std::optional<double>& reward) {
    double number = 0;
    switch (read_number(value, number)) {
      case Token::kNull:
        return;
      case Token::kNumber:
        reward = number;
        return;
      case Token::kInfinite:
        return problem("reward = {} is infinite in double precision. Give a finite reward.",
                       text_of(value));
      case Token::kWrongType:
        return problem("reward is not a number.");
      case Token::kNotJson:
        return problem("reward = {} is bad JSON. Give a finite reward.", text_of(value));
    }
  }

  bool read_string(ondemand::value value, const char* field, std::string& out) {
    ondemand::json_type type;
    if (value.type().get(type) != simdjson::SUCCESS || type != ondemand::json_type::string)
      return problem("{} is not a string.", field), false;
    out = std::string(std::string_view(value.get_string()));
    return true;
  }

  void read_responses(ondemand::value value) {
    ondemand::array array;
    if (!open_array(value, "responses", "objects", array)) return;
    for (auto element : array) {
      response_ = std::ssize(out_.responses);
      read_response(element.value(), out_.responses.emplace_back());
    }
    response_ = kOfTheGroup;
    if (out_.responses.empty()) problem("responses is empty (a group has at least one response).");
  }

  void read_response(ondemand::value value, ParsedResponse& parsed) {
    ondemand::object object;
    if (value.get_object().get(object) != simdjson::SUCCESS) return problem("it is not an object.");
    std::set<std::string> seen;
    Response& response = parsed.response;
    for (auto result : object) {
      ondemand::field field = take(std::move(result));
      const std::string key(std::string_view(field.unescaped_key()));
      ondemand::value member = field.value();
      if (!seen.insert(key).second) {
        problem("field \"{}\" stands twice. Keep one of them.", key);
      } else if (key == "ids") {
        parsed.has_ids = read_ids(member, "ids", response.ids);
      } else if (key == "reward") {
        read_reward(member, response.reward);
      } else if (key == "loss_mask") {
        parsed.has_mask = true;
        read_mask(member, response.loss_mask);
      } else if (key == "old_logprobs") {
        parsed.has_old = true;
        read_values(member, "old_logprobs", response.old_logprobs);
      } else if (key == "ref_logprobs") {
        parsed.has_ref = true;
        read_values(member, "ref_logprobs", response.ref_logprobs);
      } else if (key == "advantages") {
        parsed.has_advantages = true;
        read_values(member, "advantages", response.advantages);
      } else if (key == "truncated") {
        if (member.get_bool().get(response.truncated) != simdjson::SUCCESS)
          problem("truncated is neither true nor false.");
      } else {
        unknown(key, "ids, reward, loss_mask, old_logprobs, ref_logprobs, advantages, truncated");
      }
    }
    if (!seen.contains("ids")) problem("field \"ids\" is missing.");
  }

  ParsedLine& out_;
  std::int64_t response_ = kOfTheGroup;
  bool has_responses_ = false;
};

}  // namespace

struct RolloutLineParser::Impl {
  ondemand::parser parser;
  std::string padded;
};

RolloutLineParser::RolloutLineParser() : impl_(std::make_unique<Impl>()) {}
RolloutLineParser::~RolloutLineParser() = default;

ParsedLine RolloutLineParser::parse(const std::string& line) {
  ParsedLine parsed;
  std::string& text = impl_->padded;
  text.assign(line);
  text.append(simdjson::SIMDJSON_PADDING, '\0');
  const simdjson::padded_string_view view(text.data(), line.size(), text.size());

  LineReader reader(parsed);
  ondemand::document document;
  const auto bad_json = [&](simdjson::error_code error) {
    std::string column;
    const char* place = nullptr;
    if (error != simdjson::UTF8_ERROR && error != simdjson::UNCLOSED_STRING &&
        error != simdjson::UNESCAPED_CHARS && error != simdjson::INCOMPLETE_ARRAY_OR_OBJECT &&
        document.current_location().get(place) == simdjson::SUCCESS)
      column = fmt::format(" near column {}", place - text.data() + 1);
    parsed.is_json_object = false;  // what was read before the fault is not checked further
    reader.problem("bad JSON{} ({}).", column, simdjson::error_message(error));
  };
  if (const auto error = impl_->parser.iterate(view).get(document); error != simdjson::SUCCESS) {
    parsed.problems.push_back(
        {kOfTheGroup, fmt::format("bad JSON ({}).", simdjson::error_message(error))});
    return parsed;
  }
  try {
    reader.read(document);
    const char* rest = nullptr;
    if (parsed.is_json_object && document.current_location().get(rest) == simdjson::SUCCESS)
      bad_json(simdjson::TRAILING_CONTENT);
  } catch (const simdjson_error& error) {
    bad_json(error.error());
  }
  return parsed;
}

}  // namespace coppice
