#include "model/rope_fields.hpp"

namespace coppice {
namespace {

void refuse_partial_rotation(const ConfigFields& fields) {
  if (fields.find("partial_rotary_factor") != nullptr &&
      fields.number("partial_rotary_factor", 1.0) != 1.0) {
    fields.refuse("partial_rotary_factor", "only whole heads are rotated here",
                  "Use a model with partial_rotary_factor 1.");
  }
}

// An optional number: absent, null and 0 all mean "not given", as in transformers.
double optional_number(const ConfigFields& fields, std::string_view name, double fallback) {
  if (fields.find(name) == nullptr) return fallback;
  const double value = fields.number(name, fallback);
  return value == 0 ? fallback : value;
}

void parse_llama3(const ConfigFields& fields, RopeConfig& rope) {
  rope.factor = fields.positive("factor");
  rope.low_freq_factor = fields.positive("low_freq_factor");
  rope.high_freq_factor = fields.positive("high_freq_factor");
  if (fields.find("low_freq_factor") != nullptr && fields.find("high_freq_factor") != nullptr &&
      rope.high_freq_factor <= rope.low_freq_factor) {
    fields.refuse("high_freq_factor",
                  fmt::format("it must be above low_freq_factor = {}", rope.low_freq_factor),
                  "Take config.json from the model's own directory.");
  }
}

void parse_yarn(const ConfigFields& fields, RopeConfig& rope,
                std::int64_t max_position_embeddings) {
  if (fields.is_null("factor")) {
    rope.factor = static_cast<double>(max_position_embeddings) /
                  static_cast<double>(rope.original_max_position_embeddings);
  } else {
    rope.factor = fields.positive("factor");
  }
  if (fields.find("attention_factor") != nullptr) {
    rope.attention_factor = fields.positive("attention_factor", 1.0);
  }
  rope.beta_fast = optional_number(fields, "beta_fast", 32.0);
  rope.beta_slow = optional_number(fields, "beta_slow", 1.0);
  if (rope.beta_slow <= 0 || rope.beta_fast < rope.beta_slow) {
    fields.refuse("beta_fast",
                  fmt::format("beta_fast = {} and beta_slow = {} must be above 0 and in this order",
                              rope.beta_fast, rope.beta_slow),
                  "Take config.json from the model's own directory.");
  }
  if (fields.find("mscale") != nullptr) rope.mscale = fields.number("mscale");
  if (fields.find("mscale_all_dim") != nullptr)
    rope.mscale_all_dim = fields.number("mscale_all_dim");
  rope.truncate = fields.boolean("truncate", true);
}

}  // namespace

RopeConfig parse_rope(const ConfigFields& fields, std::int64_t max_position_embeddings) {
  RopeConfig rope;
  refuse_partial_rotation(fields);
  const nlohmann::json* scaling = fields.find("rope_scaling");
  const nlohmann::json* parameters = fields.find("rope_parameters");
  if (scaling != nullptr && parameters != nullptr && *scaling != *parameters) {
    fields.refuse("rope_scaling", "rope_parameters is there too and says something else",
                  "Keep one of the two.");
  }
  const std::string_view name = scaling != nullptr ? "rope_scaling" : "rope_parameters";
  const nlohmann::json* object = scaling != nullptr ? scaling : parameters;
  const nlohmann::json empty = nlohmann::json::object();
  if (object == nullptr) object = &empty;
  if (!object->is_object()) {
    fields.refuse(name, "it must be an object or null",
                  "Take config.json from the model's own directory.");
    return rope;
  }
  const ConfigFields inner(*object, fields.file(), fmt::format("{}.", name), fields.problems());

  for (const auto& [key, value] : object->items()) {
    if (value.is_object()) {
      inner.refuse(key, "rope parameters that differ between layers are not supported",
                   "Use a model with one set of rope parameters.");
      return rope;
    }
  }
  refuse_partial_rotation(inner);
  rope.theta = inner.find("rope_theta") != nullptr ? inner.positive("rope_theta")
                                                   : fields.positive("rope_theta", 10000.0);
  if (rope.theta == 1.0) {
    (inner.find("rope_theta") != nullptr ? inner : fields)
        .refuse("rope_theta", "every pair would turn alike",
                "Take config.json from the model's own directory.");
  }

  const std::string_view type_name = object->contains("rope_type") ? "rope_type" : "type";
  const std::string type = inner.string(type_name, "default");
  if (type == "llama3" || type == "yarn") {
    rope.original_max_position_embeddings =
        fields.find("original_max_position_embeddings") != nullptr
            ? fields.size("original_max_position_embeddings")
            : inner.size("original_max_position_embeddings", max_position_embeddings);
  }
  if (type == "default") {
    rope.type = RopeType::kDefault;
  } else if (type == "linear") {
    rope.type = RopeType::kLinear;
    rope.factor = inner.positive("factor");
  } else if (type == "llama3") {
    rope.type = RopeType::kLlama3;
    parse_llama3(inner, rope);
  } else if (type == "yarn") {
    rope.type = RopeType::kYarn;
    parse_yarn(inner, rope, max_position_embeddings);
  } else if (inner.find(type_name) == nullptr || inner.find(type_name)->is_string()) {
    inner.refuse(type_name, "this rope type is not supported",
                 "Supported are default, linear, llama3 and yarn.");
  }
  if (inner.find("mrope_section") != nullptr) {
    inner.refuse("mrope_section", "multimodal positions are not supported",
                 "Use a text-only model.");
  }
  return rope;
}

}  // namespace coppice
