#pragma once
// A directory for runs of the program on a CUDA device, real or emulated.
#include <string>
#include <vector>

#include "core/build_config.hpp"
#include "core/device.hpp"
#include "end_to_end/tiny_run.hpp"

namespace coppice::test {

inline constexpr int kVocabulary = 151;

class ProgramOnCuda : public TinyRun {
 protected:
  ProgramOnCuda() {
    write_config(64);
    init("model.h5");
    write_file(dir_ / "rollouts.jsonl", random_rollouts({.groups = 3,
                                                         .responses = 3,
                                                         .longest_prompt = 12,
                                                         .longest_response = 7,
                                                         .vocab_size = kVocabulary}));
    write_file(dir_ / "run.textproto",
               "run_dir: \"run\"\n"
               "model { checkpoint: \"model.h5\" }\n"
               "data { rollouts: \"rollouts.jsonl\" groups_per_step: 1 }\n"
               "batching { sharing: GROUPED max_rows_per_microbatch: 48 }\n"
               "loss { entropy_coef: 0.01 }\n"
               "optimizer { learning_rate: 1e-3 weight_decay: 0.1 }\n"
               "limits { max_steps: 2 }\n"
               "device: CUDA\n");
  }

  void write_config(int head_dim) const {
    const nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                                   {"hidden_size", 64},
                                   {"intermediate_size", 96},
                                   {"num_hidden_layers", 2},
                                   {"num_attention_heads", 2},
                                   {"num_key_value_heads", 1},
                                   {"head_dim", head_dim},
                                   {"vocab_size", kVocabulary},
                                   {"max_position_embeddings", 64},
                                   {"initializer_range", 0.05},
                                   {"rms_norm_eps", 1e-6},
                                   {"tie_word_embeddings", true}};
    write_file(dir_ / "config.json", config.dump());
  }
  void init(const std::string& name) const {
    const auto made = coppice({"init", "--hf-config", "config.json", "--seed", "7", "--out", name});
    EXPECT_EQ(made.status, 0) << made.err;
  }

  /// Whether ranks of this machine can have a device each: the emulated one is every process's own.
  static bool has_devices(int ranks) {
    return build::kEmulatedDevice || device_count(DeviceKind::kCuda) >= ranks;
  }
  /// How several ranks talk here, for tests that do not mind.
  static std::string communicator(int ranks) {
    return has_devices(ranks) ? "parallel.communicator=AUTO" : "parallel.communicator=STAGED";
  }
};

}  // namespace coppice::test
