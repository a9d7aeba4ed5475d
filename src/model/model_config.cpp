#include "model/model_config.hpp"

#include <array>

#include "model/config_fields.hpp"
#include "model/rope_fields.hpp"

namespace coppice {
namespace {

using Json = nlohmann::json;

struct FamilyFacts {
  ModelFamily family;
  std::string_view architecture;
  std::string_view model_type;
  std::int64_t max_position_embeddings;  // transformers' defaults of absent fields
  std::int64_t num_key_value_heads;      // 0: as many as attention heads
  std::int64_t head_dim;                 // 0: hidden_size / num_attention_heads
};

constexpr std::array<FamilyFacts, 4> kFamilies{{
    {ModelFamily::kLlama, "LlamaForCausalLM", "llama", 2048, 0, 0},
    {ModelFamily::kQwen2, "Qwen2ForCausalLM", "qwen2", 32768, 32, 0},
    {ModelFamily::kQwen3, "Qwen3ForCausalLM", "qwen3", 32768, 32, 128},
    {ModelFamily::kMistral, "MistralForCausalLM", "mistral", 4096 * 32, 8, 0},
}};

constexpr std::string_view kSupported =
    "Supported are LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM and MistralForCausalLM.";

const FamilyFacts* family_of(const ConfigFields& fields) {
  const FamilyFacts* by_type = nullptr;
  const std::string type = fields.string("model_type", "");
  for (const auto& facts : kFamilies) {
    if (facts.model_type == type) by_type = &facts;
  }
  const Json* architectures = fields.find("architectures");
  if (architectures == nullptr) {
    if (by_type == nullptr && !fields.is_null("model_type")) {
      fields.refuse("model_type", "without architectures it must say which model this is",
                    kSupported);
    }
    return by_type;
  }
  const FamilyFacts* found = nullptr;
  if (architectures->is_array() && architectures->size() == 1 && (*architectures)[0].is_string()) {
    for (const auto& facts : kFamilies) {
      if (facts.architecture == (*architectures)[0].get<std::string>()) found = &facts;
    }
  }
  if (found == nullptr) {
    fields.refuse("architectures", "this architecture is not supported", kSupported);
  } else if (!type.empty() && found != by_type) {
    fields.refuse("model_type",
                  fmt::format("it does not belong to architectures = {}", found->architecture),
                  "Take config.json from the model's own directory.");
  }
  return found;
}

// Fields that would change the model's function, each with the one value at which it does not.
// Absent, null and false never do.
struct Neutral {
  std::string_view name;
  double value;
};
constexpr std::array kNeutral{
    Neutral{"attention_multiplier", 0},
    Neutral{"attn_logit_softcapping", 0},
    Neutral{"final_logit_softcapping", 0},
    Neutral{"logit_softcapping", 0},
    Neutral{"logit_scale", 1},
    Neutral{"logits_scaling", 1},
    Neutral{"residual_multiplier", 1},
    Neutral{"embedding_multiplier", 1},
    Neutral{"scale_emb", 1},
    Neutral{"scale_depth", 0},
    Neutral{"dim_model_base", 0},
    Neutral{"query_pre_attn_scalar", 0},
    Neutral{"softmax_scale", 0},
    Neutral{"attention_chunk_size", 0},
    Neutral{"no_rope_layer_interval", 0},
    Neutral{"parallel_attn", 0},
    Neutral{"alibi", 0},
    Neutral{"use_qk_norm", 0},
    Neutral{"qk_layernorm", 0},
    Neutral{"kv_lora_rank", 0},
    Neutral{"q_lora_rank", 0},
    Neutral{"attention_bias", 0},
    Neutral{"attention_out_bias", 0},
    Neutral{"mlp_bias", 0},
};
constexpr std::array<std::string_view, 6> kExperts{"num_experts",           "num_local_experts",
                                                   "n_routed_experts",      "n_shared_experts",
                                                   "moe_intermediate_size", "num_experts_per_tok"};

bool is_neutral(const Json& value, double neutral) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  return value.is_number() && value.get<double>() == neutral;
}

void refuse_other_mathematics(const ConfigFields& fields, ModelFamily family) {
  for (const auto& [name, neutral] : kNeutral) {
    // Qwen2 has its q, k, v biases whatever this field says, and never one on the output.
    if (family == ModelFamily::kQwen2 && name == "attention_bias") continue;
    const Json* value = fields.find(name);
    if (value != nullptr && !is_neutral(*value, neutral)) {
      fields.refuse(name, "it changes the model's function in a way that is not supported",
                    "Use a model without it.");
    }
  }
  for (std::string_view name : kExperts) {
    const Json* value = fields.find(name);
    if (value != nullptr && !is_neutral(*value, 0)) {
      fields.refuse(name, "mixtures of experts are not supported", "Use a dense model.");
    }
  }
  if (fields.find("quantization_config") != nullptr) {
    fields.refuse("quantization_config", "quantised weights are not supported",
                  "Use the model's unquantised weights.");
  }
  if (fields.string("hidden_act", "silu") != "silu") {
    fields.refuse("hidden_act", "this activation is not supported", "Supported is silu.");
  }
  for (const auto& [name, value] : fields.object().items()) {
    const bool dropout = name.find("dropout") != std::string::npos || name.ends_with("_pdrop");
    if (dropout && !is_neutral(value, 0)) {
      fields.refuse(name, "one dropout mask cannot stand for all responses that share a prefix",
                    "Set it to 0.");
    }
  }
}

void refuse_sliding_windows(const ConfigFields& fields, ModelFamily family) {
  constexpr std::string_view kWhy = "attention within a sliding window is not supported";
  constexpr std::string_view kTurnOff =
      "Where the window never matters for your lengths, set it to null yourself.";
  if (family == ModelFamily::kMistral) {
    if (!fields.is_null("sliding_window")) {
      fields.refuse("sliding_window",
                    fields.find("sliding_window") != nullptr
                        ? kWhy
                        : "transformers then takes a window of 4096, and windows are not supported",
                    kTurnOff);
    }
  } else if (family == ModelFamily::kLlama && !fields.is_null("sliding_window") &&
             fields.find("sliding_window") != nullptr) {
    // transformers passes over it here; whoever set it wanted a window, and would not get one.
    fields.refuse("sliding_window", kWhy, kTurnOff);
  } else if (fields.boolean("use_sliding_window", false)) {
    fields.refuse("use_sliding_window", kWhy,
                  "Where the window never matters for your lengths, set it to false yourself.");
  }
  const Json* types = fields.find("layer_types");
  if (types == nullptr) return;
  const Json* layers = fields.find("num_hidden_layers");
  if (!types->is_array() ||
      (layers != nullptr && layers->is_number() && *layers != types->size())) {
    fields.refuse("layer_types", "it must be a list with one entry for each of num_hidden_layers",
                  "Take config.json from the model's own directory.");
    return;
  }
  for (std::size_t layer = 0; layer < types->size(); ++layer) {
    const Json& type = (*types)[layer];
    if (type.is_string() && type.get_ref<const std::string&>() == "full_attention") continue;
    fields.problems().add("{} = {} (only full_attention is supported). Use a model without it.",
                          fields.place(fmt::format("layer_types[{}]", layer)), type.dump());
  }
}

// A damaged config must not make the program list or allocate without end. Real models stay far
// below both: 1e15 weights are a thousand times the largest.
constexpr std::int64_t kMostLayers = 65536;
constexpr double kMostParameters = 1e15;

void refuse_more_than_any_machine_holds(const ConfigFields& fields, const ModelConfig& config) {
  const auto real = [](std::int64_t size) { return static_cast<double>(size); };
  const double hidden = real(config.hidden_size);
  const double heads = 2 * (real(config.num_attention_heads) + real(config.num_key_value_heads));
  const double layer =
      hidden * (heads * real(config.head_dim) + 3 * real(config.intermediate_size));
  const double parameters =
      2 * hidden * real(config.vocab_size) + real(config.num_hidden_layers) * layer;
  if (parameters > kMostParameters)
    fields.problems().add(
        "{}: its sizes make about {:.1g} parameters (more than any machine holds). Take "
        "config.json from the model's own directory.",
        fields.place("hidden_size"), parameters);
}

void parse_sizes(const ConfigFields& fields, const FamilyFacts& facts, ModelConfig& config) {
  const auto problems_before = fields.problems().lines().size();
  config.hidden_size = fields.size("hidden_size");
  config.intermediate_size = fields.size("intermediate_size");
  config.num_hidden_layers = fields.size("num_hidden_layers", {}, kMostLayers);
  config.num_attention_heads = fields.size("num_attention_heads");
  config.vocab_size = fields.size("vocab_size");
  config.max_position_embeddings =
      fields.size("max_position_embeddings", facts.max_position_embeddings);
  config.num_key_value_heads =
      fields.is_null("num_key_value_heads")
          ? config.num_attention_heads
          : fields.size("num_key_value_heads", facts.num_key_value_heads > 0
                                                   ? facts.num_key_value_heads
                                                   : config.num_attention_heads);
  // How sizes fit together says something only where each is one.
  if (fields.problems().lines().size() != problems_before) return;
  if (config.num_attention_heads % config.num_key_value_heads != 0) {
    fields.problems().add(
        "{} = {} is not divisible by num_key_value_heads = {} (every key-value head serves the "
        "same number of heads). Take config.json from the model's own directory.",
        fields.place("num_attention_heads"), config.num_attention_heads,
        config.num_key_value_heads);
  }
  const bool derived = facts.head_dim == 0 && fields.find("head_dim") == nullptr;
  if (derived && config.hidden_size % config.num_attention_heads != 0) {
    fields.problems().add(
        "{} = {} is not divisible by num_attention_heads = {} (there is no head_dim, so this is "
        "it). Take config.json from the model's own directory.",
        fields.place("hidden_size"), config.hidden_size, config.num_attention_heads);
  }
  config.head_dim = derived
                        ? std::max<std::int64_t>(1, config.hidden_size / config.num_attention_heads)
                        : fields.size("head_dim", facts.head_dim > 0 ? std::optional(facts.head_dim)
                                                                     : std::nullopt);
  if (config.head_dim % 2 != 0) {
    fields.problems().add(
        "{} = {} is odd (rope turns dimensions in pairs). Use a model with an "
        "even head_dim.",
        fields.place("head_dim"), config.head_dim);
  }
  refuse_more_than_any_machine_holds(fields, config);
}

}  // namespace

std::string_view architecture_of(ModelFamily family) {
  for (const auto& facts : kFamilies) {
    if (facts.family == family) return facts.architecture;
  }
  return "";
}

ModelConfig ModelConfig::parse(std::string_view text, std::string_view file_name) {
  Problems problems;
  const Json object = config_object(text, std::string(file_name), problems);
  const ConfigFields fields(object, std::string(file_name), "", problems);
  const FamilyFacts* facts = family_of(fields);
  ModelConfig config;
  config.json = text;
  if (facts != nullptr) {
    config.family = facts->family;
    config.qkv_bias = facts->family == ModelFamily::kQwen2;
    config.qk_norm = facts->family == ModelFamily::kQwen3;
    // An unknown architecture may name its sizes otherwise; calling them missing would mislead.
    parse_sizes(fields, *facts, config);
  }
  config.rms_norm_eps = fields.positive("rms_norm_eps", 1e-6);
  config.initializer_range = fields.positive("initializer_range", 0.02);
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings", false);
  config.rope = parse_rope(fields, config.max_position_embeddings);
  refuse_other_mathematics(fields, config.family);
  refuse_sliding_windows(fields, config.family);
  problems.throw_if_any<ConfigError>();
  return config;
}

}  // namespace coppice
