// What is read from a config.json, which defaults absent fields take (transformers 5.24, looked up
// there), and that everything unsupported is refused by name and all at once.
#include "model/model_config.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/rng.hpp"

namespace coppice {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using testing::UnorderedElementsAre;

json minimal(const std::string& architecture) {
  json config = {{"architectures", {architecture}},
                 {"hidden_size", 64},
                 {"intermediate_size", 96},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"vocab_size", 151},
                 {"max_position_embeddings", 512}};
  if (architecture == "MistralForCausalLM") config["sliding_window"] = nullptr;
  return config;
}

ModelConfig parse(const json& config) { return ModelConfig::parse(config.dump(), "config.json"); }

std::vector<std::string> problems_of_text(std::string_view text) {
  try {
    ModelConfig::parse(text, "config.json");
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}
std::vector<std::string> problems_of(const json& config) { return problems_of_text(config.dump()); }

class EachFamily : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Families, EachFamily,
                         testing::Values("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM",
                                         "MistralForCausalLM"),
                         [](const auto& p) { return p.param; });

TEST_P(EachFamily, IsReadWithItsSizes) {
  const ModelConfig config = parse(minimal(GetParam()));
  EXPECT_EQ(architecture_of(config.family), GetParam());
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 96);
  EXPECT_EQ(config.num_hidden_layers, 2);
  EXPECT_EQ(config.num_attention_heads, 4);
  EXPECT_EQ(config.num_key_value_heads, 2);
  EXPECT_EQ(config.vocab_size, 151);
  EXPECT_EQ(config.max_position_embeddings, 512);
  EXPECT_EQ(config.qkv_bias, GetParam() == "Qwen2ForCausalLM");
  EXPECT_EQ(config.qk_norm, GetParam() == "Qwen3ForCausalLM");
}

TEST_P(EachFamily, TakesTransformersDefaultsWhereFieldsAreAbsent) {
  json fields = minimal(GetParam());
  fields.erase("num_key_value_heads");
  fields.erase("max_position_embeddings");
  fields["num_attention_heads"] = 32;
  const ModelConfig config = parse(fields);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.initializer_range, 0.02);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.rope.type, RopeType::kDefault);
  EXPECT_EQ(config.rope.theta, 10000.0);
  const bool mistral = GetParam() == "MistralForCausalLM", llama = GetParam() == "LlamaForCausalLM";
  EXPECT_EQ(config.num_key_value_heads, mistral ? 8 : 32);
  EXPECT_EQ(config.max_position_embeddings, llama ? 2048 : mistral ? 131072 : 32768);
  EXPECT_EQ(config.head_dim, GetParam() == "Qwen3ForCausalLM" ? 128 : 2);
}

TEST_P(EachFamily, IsKnownByItsModelTypeAlone) {
  json fields = minimal(GetParam());
  fields.erase("architectures");
  std::string type = GetParam().substr(0, GetParam().find("For"));
  type[0] = static_cast<char>(std::tolower(type[0]));
  fields["model_type"] = type;
  EXPECT_EQ(architecture_of(parse(fields).family), GetParam());
}

TEST_P(EachFamily, KeepsItsJsonByteForByte) {
  const std::string text = fmt::format(" {}\n", minimal(GetParam()).dump(3));
  EXPECT_EQ(ModelConfig::parse(text, "config.json").json, text);
}

TEST(ModelConfig, ReadsAHeadDimApartFromTheHiddenSize) {
  for (const char* architecture : {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    json fields = minimal(architecture);
    fields["head_dim"] = 80;
    EXPECT_EQ(parse(fields).head_dim, 80) << architecture;
  }
}

TEST(ModelConfig, TakesNullKeyValueHeadsAsAllHeadsAndNullHeadDimAsDerived) {
  json fields = minimal("LlamaForCausalLM");
  fields["num_key_value_heads"] = nullptr;
  fields["head_dim"] = nullptr;
  EXPECT_EQ(parse(fields).num_key_value_heads, 4);
  EXPECT_EQ(parse(fields).head_dim, 16);
}

TEST(ModelConfig, IgnoresFieldsThatChangeNothing) {
  json fields = minimal("Qwen2ForCausalLM");
  fields.update({{"torch_dtype", "bfloat16"},
                 {"use_cache", true},
                 {"pretraining_tp", 4},
                 {"bos_token_id", 1},
                 {"attention_dropout", 0.0},
                 {"sliding_window", 4096},
                 {"max_window_layers", 1},
                 {"use_sliding_window", false},
                 {"quantization_config", nullptr},
                 {"layer_types", {"full_attention", "full_attention"}},
                 {"logits_scaling", 1.0},
                 {"transformers_version", "4.1"}});
  EXPECT_THAT(problems_of(fields), IsEmpty());
}

// ---- rope

json with_rope(const std::string& key, json rope) {
  json fields = minimal("LlamaForCausalLM");
  fields[key] = std::move(rope);
  return fields;
}

TEST(ModelConfigRope, ReadsOldAndNewSpellingsAlike) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    for (const char* type : {"type", "rope_type"}) {
      json fields = with_rope(key, {{type, "linear"}, {"factor", 2.5}});
      fields["rope_theta"] = 5e5;
      const RopeConfig rope = parse(fields).rope;
      EXPECT_EQ(rope.type, RopeType::kLinear) << key << " " << type;
      EXPECT_EQ(rope.factor, 2.5);
      EXPECT_EQ(rope.theta, 5e5);
    }
  }
}

TEST(ModelConfigRope, PrefersTheThetaInsideTheRopeObject) {
  json fields = with_rope("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}});
  fields["rope_theta"] = 3.0;
  EXPECT_EQ(parse(fields).rope.theta, 1e6);
}

TEST(ModelConfigRope, ReadsNullAsDefault) {
  EXPECT_EQ(parse(with_rope("rope_scaling", nullptr)).rope.type, RopeType::kDefault);
}

TEST(ModelConfigRope, ReadsEveryFieldOfLlama3) {
  const RopeConfig rope =
      parse(with_rope("rope_scaling", {{"rope_type", "llama3"},
                                       {"factor", 8.0},
                                       {"low_freq_factor", 1.5},
                                       {"high_freq_factor", 4},
                                       {"original_max_position_embeddings", 128}}))
          .rope;
  EXPECT_EQ(rope.type, RopeType::kLlama3);
  EXPECT_EQ(rope.factor, 8.0);
  EXPECT_EQ(rope.low_freq_factor, 1.5);
  EXPECT_EQ(rope.high_freq_factor, 4.0);
  EXPECT_EQ(rope.original_max_position_embeddings, 128);
}

TEST(ModelConfigRope, ReadsEveryFieldOfYarn) {
  const RopeConfig rope =
      parse(with_rope("rope_parameters", {{"rope_type", "yarn"},
                                          {"factor", 5},
                                          {"original_max_position_embeddings", 128},
                                          {"attention_factor", 0.5},
                                          {"beta_fast", 16},
                                          {"beta_slow", 2},
                                          {"mscale", 0.7},
                                          {"mscale_all_dim", 0.8},
                                          {"truncate", false}}))
          .rope;
  EXPECT_EQ(rope.type, RopeType::kYarn);
  EXPECT_EQ(rope.factor, 5.0);
  EXPECT_EQ(rope.original_max_position_embeddings, 128);
  EXPECT_EQ(rope.attention_factor, 0.5);
  EXPECT_EQ(rope.beta_fast, 16.0);
  EXPECT_EQ(rope.beta_slow, 2.0);
  EXPECT_EQ(rope.mscale, 0.7);
  EXPECT_EQ(rope.mscale_all_dim, 0.8);
  EXPECT_FALSE(rope.truncate);
}

// original_max_position_embeddings falls back to max_position_embeddings = 512.
TEST(ModelConfigRope, GivesYarnTransformersDefaults) {
  const RopeConfig rope =
      parse(with_rope("rope_scaling", {{"type", "yarn"}, {"factor", 4.0}})).rope;
  EXPECT_EQ(rope.original_max_position_embeddings, 512);
  EXPECT_EQ(rope.attention_factor, std::nullopt);
  EXPECT_EQ(rope.beta_fast, 32.0);
  EXPECT_EQ(rope.beta_slow, 1.0);
  EXPECT_TRUE(rope.truncate);
}

TEST(ModelConfigRope, DerivesANullYarnFactorFromTheTwoContexts) {
  const RopeConfig rope =
      parse(with_rope(
                "rope_scaling",
                {{"type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 128}}))
          .rope;
  EXPECT_EQ(rope.factor, 4.0);
}

// ---- refusals: the whole list of problems is looked at, so a second one would show

struct Refusal {
  const char* name;
  json changes;
  std::vector<std::string> says;  // parts of the one problem
};
void PrintTo(const Refusal& refusal, std::ostream* out) { *out << refusal.name; }

class Refuses : public testing::TestWithParam<Refusal> {};

TEST_P(Refuses, ByNameWithItsValue) {
  json fields = minimal("LlamaForCausalLM");
  fields.update(GetParam().changes);
  for (auto field = fields.begin(); field != fields.end();) {
    field = *field == "ABSENT" ? fields.erase(field) : std::next(field);
  }
  const auto problems = problems_of(fields);
  ASSERT_EQ(problems.size(), 1u) << testing::PrintToString(problems);
  EXPECT_THAT(problems[0], StartsWith("config.json: "));
  for (const auto& part : GetParam().says) EXPECT_THAT(problems[0], HasSubstr(part));
}

const std::vector<Refusal> kRefusals{
    {"Architecture", {{"architectures", {"GemmaForCausalLM"}}}, {"GemmaForCausalLM", "Supported"}},
    {"BaseModel", {{"architectures", {"LlamaModel"}}}, {"architectures", "LlamaModel"}},
    {"NoArchitecture", {{"architectures", "ABSENT"}}, {"model_type is missing"}},
    {"ModelTypeThatDisagrees", {{"model_type", "qwen2"}}, {"model_type = \"qwen2\"", "Llama"}},
    {"Activation", {{"hidden_act", "gelu"}}, {"hidden_act = \"gelu\"", "silu"}},
    {"AttentionDropout", {{"attention_dropout", 0.1}}, {"attention_dropout = 0.1"}},
    {"AnyDropout", {{"resid_pdrop", 0.1}}, {"resid_pdrop = 0.1"}},
    {"HiddenDropout", {{"hidden_dropout_prob", 0.5}}, {"hidden_dropout_prob = 0.5"}},
    {"Quantization", {{"quantization_config", {{"bits", 4}}}}, {"quantization_config", "bits"}},
    {"AttentionBias", {{"attention_bias", true}}, {"attention_bias = true"}},
    {"MlpBias", {{"mlp_bias", true}}, {"mlp_bias = true"}},
    {"Experts", {{"num_local_experts", 8}}, {"num_local_experts = 8", "experts"}},
    {"LogitScaling", {{"logits_scaling", 8.0}}, {"logits_scaling = 8.0"}},
    {"AttentionMultiplier", {{"attention_multiplier", 0.5}}, {"attention_multiplier = 0.5"}},
    {"ResidualMultiplier", {{"residual_multiplier", 0.2}}, {"residual_multiplier = 0.2"}},
    {"SoftCapping", {{"final_logit_softcapping", 30.0}}, {"final_logit_softcapping = 30.0"}},
    {"SlidingLayers",
     {{"layer_types", {"full_attention", "sliding_attention"}}},
     {"layer_types[1] = \"sliding_attention\""}},
    {"LayerTypesOfAnotherLength", {{"layer_types", {"full_attention"}}}, {"layer_types"}},
    {"PartialRotation", {{"partial_rotary_factor", 0.5}}, {"partial_rotary_factor = 0.5"}},
    {"RopeType",
     {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}},
     {"rope_scaling.type = \"dynamic\"", "llama3"}},
    {"NewRopeType",
     {{"rope_parameters", {{"rope_type", "longrope"}}}},
     {"rope_parameters.rope_type = \"longrope\""}},
    {"LinearWithoutFactor",
     {{"rope_scaling", {{"type", "linear"}}}},
     {"rope_scaling.factor is missing"}},
    {"FactorOfZero",
     {{"rope_scaling", {{"type", "linear"}, {"factor", 0}}}},
     {"rope_scaling.factor = 0"}},
    {"Llama3BoundsInDisorder",
     {{"rope_scaling",
       {{"rope_type", "llama3"},
        {"factor", 8.0},
        {"low_freq_factor", 4.0},
        {"high_freq_factor", 1.0}}}},
     {"rope_scaling.high_freq_factor = 1.0", "low_freq_factor = 4"}},
    {"YarnBetasInDisorder",
     {{"rope_scaling",
       {{"rope_type", "yarn"}, {"factor", 8.0}, {"beta_fast", 1}, {"beta_slow", 2}}}},
     {"rope_scaling.beta_fast = 1", "beta_slow = 2"}},
    {"RopeByLayerType",
     {{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}},
     {"rope_parameters.full_attention", "differ between layers"}},
    {"RopeThatIsNoObject", {{"rope_scaling", "linear"}}, {"rope_scaling = \"linear\""}},
    {"TwoRopes",
     {{"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}},
      {"rope_parameters", {{"rope_type", "default"}}}},
     {"rope_scaling", "rope_parameters"}},
    {"MultimodalRope",
     {{"rope_scaling", {{"type", "default"}, {"mrope_section", {1, 2}}}}},
     {"rope_scaling.mrope_section"}},
    {"ThetaOfTheWrongType", {{"rope_theta", "big"}}, {"rope_theta = \"big\""}},
    {"MissingSize", {{"hidden_size", "ABSENT"}}, {"hidden_size is missing"}},
    {"NullSize", {{"vocab_size", nullptr}}, {"vocab_size = null"}},
    {"SizeOfTheWrongType", {{"intermediate_size", "96"}}, {"intermediate_size = \"96\""}},
    {"FractionalSize", {{"num_hidden_layers", 2.0}}, {"num_hidden_layers = 2.0"}},
    {"SizeOfZero",
     {{"num_hidden_layers", 0}, {"layer_types", "ABSENT"}},
     {"num_hidden_layers = 0"}},
    {"NegativeSize", {{"vocab_size", -5}}, {"vocab_size = -5"}},
    {"HugeSize", {{"vocab_size", 18446744073709551615u}}, {"vocab_size = 18446744073709551615"}},
    {"MoreLayersThanAnyModel",
     {{"num_hidden_layers", 65537}, {"layer_types", "ABSENT"}},
     {"num_hidden_layers = 65537", "from 1 to 65536"}},
    {"MoreWeightsThanAnyMachineHolds",
     {{"hidden_size", 2147483640}, {"intermediate_size", 2147483640}},
     {"hidden_size", "parameters"}},
    {"EpsilonOfZero", {{"rms_norm_eps", 0.0}}, {"rms_norm_eps = 0.0"}},
    {"TieOfTheWrongType", {{"tie_word_embeddings", "yes"}}, {"tie_word_embeddings = \"yes\""}},
    {"HeadsThatDoNotDivide",
     {{"num_key_value_heads", 3}},
     {"num_attention_heads = 4", "num_key_value_heads = 3"}},
    {"HiddenSizeThatDoesNotDivide",
     {{"hidden_size", 66}},
     {"hidden_size = 66", "num_attention_heads = 4"}},
    {"OddHeadDim", {{"head_dim", 15}}, {"head_dim = 15", "odd"}},
};
INSTANTIATE_TEST_SUITE_P(ModelConfig, Refuses, testing::ValuesIn(kRefusals),
                         [](const auto& p) { return std::string(p.param.name); });

// Seen red: not caught, as the parser reports it by another type than bad JSON.
TEST(ModelConfig, RefusesANumberBeyondDouble) {
  try {
    ModelConfig::parse("{\"rope_theta\": 1e999}", "config.json");
    ADD_FAILURE() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.problems(), ElementsAre(HasSubstr("config.json: holds a number")));
  }
}

TEST(ModelConfig, RefusesSlidingWindowsOfQwenWhenInUse) {
  for (const char* architecture : {"Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    json fields = minimal(architecture);
    fields["use_sliding_window"] = true;
    EXPECT_THAT(problems_of(fields), ElementsAre(HasSubstr("use_sliding_window = true")));
  }
}

TEST(ModelConfig, RefusesTheSlidingWindowOfMistralAlsoWhereItIsOnlyTheDefault) {
  json fields = minimal("MistralForCausalLM");
  fields["sliding_window"] = 4096;
  EXPECT_THAT(problems_of(fields), ElementsAre(HasSubstr("sliding_window = 4096")));
  fields.erase("sliding_window");
  EXPECT_THAT(problems_of(fields), ElementsAre(HasSubstr("sliding_window is missing")));
}

// transformers passes over it in a Llama; a config that has it was meant for another model.
TEST(ModelConfig, RefusesASlidingWindowOfLlama) {
  json fields = minimal("LlamaForCausalLM");
  fields["sliding_window"] = nullptr;
  EXPECT_THAT(problems_of(fields), testing::IsEmpty());
  fields["sliding_window"] = 4096;
  EXPECT_THAT(problems_of(fields), ElementsAre(HasSubstr("sliding_window = 4096")));
}

TEST(ModelConfig, RefusesAnAttentionBiasOfQwen3ButKnowsThatOfQwen2) {
  json fields = minimal("Qwen3ForCausalLM");
  fields["attention_bias"] = true;
  EXPECT_THAT(problems_of(fields), ElementsAre(HasSubstr("attention_bias = true")));
  fields["architectures"] = {"Qwen2ForCausalLM"};
  EXPECT_THAT(problems_of(fields), IsEmpty());
}

TEST(ModelConfig, ListsAllProblemsAtOnce) {
  json fields = minimal("LlamaForCausalLM");
  fields.update({{"hidden_act", "relu"},
                 {"attention_dropout", 0.1},
                 {"vocab_size", 0},
                 {"rope_scaling", {{"type", "ntk"}}},
                 {"quantization_config", {{"bits", 4}}},
                 {"rms_norm_eps", "small"}});
  fields.erase("hidden_size");
  EXPECT_THAT(problems_of(fields),
              UnorderedElementsAre(HasSubstr("hidden_act"), HasSubstr("attention_dropout"),
                                   HasSubstr("vocab_size"), HasSubstr("rope_scaling.type"),
                                   HasSubstr("quantization_config"), HasSubstr("rms_norm_eps"),
                                   HasSubstr("hidden_size")));
}

TEST(ModelConfig, ListsWhatElseIsWrongBesideAnUnknownArchitecture) {
  json fields = minimal("GPT2LMHeadModel");
  fields["attn_pdrop"] = 0.1;
  fields.erase("hidden_size");
  EXPECT_THAT(problems_of(fields),
              UnorderedElementsAre(HasSubstr("GPT2LMHeadModel"), HasSubstr("attn_pdrop = 0.1")));
}

// Seen red: the last one counted, and the other was lost without a word.
TEST(ModelConfig, RefusesAFieldThatIsGivenTwice) {
  std::string text = minimal("LlamaForCausalLM").dump();
  text.replace(text.rfind('}'), 1,
               R"(, "hidden_act": "relu", "vocab_size": 7, "x": {"y": 1, "y": 1}})");
  EXPECT_THAT(problems_of_text(text),
              UnorderedElementsAre(HasSubstr("\"vocab_size\" is given twice"),
                                   HasSubstr("\"y\" is given twice"), HasSubstr("hidden_act")));
}

TEST(ModelConfig, RefusesJsonThatNestsDeeply) {
  const std::string deep = "{\"rope_scaling\": " + std::string(200000, '[') + "}";
  EXPECT_THAT(problems_of_text(deep), ElementsAre(HasSubstr("nested more than 32 deep")));
}

// Whatever is in the file: a config or a refusal, never a crash or another error.
TEST(ModelConfig, SurvivesAnyDamageToAFile) {
  json fields = minimal("LlamaForCausalLM");
  fields["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", 8.0},
                            {"low_freq_factor", 1.0},
                            {"high_freq_factor", 4.0}};
  const std::string text = fields.dump();
  const RandomStream random(1, "damage");
  int read = 0, refused = 0;
  for (std::uint64_t i = 0; i < 4000; ++i) {
    std::string damaged = text;
    for (std::uint64_t flip = 0; flip <= i % 3; ++flip) {
      const auto at = random.below(damaged.size(), 8 * i + 2 * flip);
      const std::string_view characters = "0123456789-.eE{}[],:\"ntf \\\x80";
      damaged[at] = characters[random.below(characters.size(), 8 * i + 2 * flip + 1)];
    }
    if (i % 7 == 0) damaged.resize(random.below(damaged.size(), 8 * i + 7));
    try {
      ModelConfig::parse(damaged, "config.json");
      ++read;
    } catch (const ConfigError&) {
      ++refused;
    }
  }
  EXPECT_GT(read, 100);
  EXPECT_GT(refused, 1000);
}

TEST(ModelConfig, RefusesWhatIsNotJsonOrNotAnObject) {
  EXPECT_THAT(problems_of_text(std::string_view("{\"hidden_size\": 6")),
              ElementsAre(AllOf(StartsWith("config.json: "), HasSubstr("bad JSON at byte"))));
  EXPECT_THAT(problems_of_text(std::string_view("")), ElementsAre(HasSubstr("bad JSON")));
  EXPECT_THAT(problems_of_text(std::string_view("[1]")),
              ElementsAre(HasSubstr("not a JSON object")));
}

}  // namespace
}  // namespace coppice
