#pragma once
// The run config as plain values, with every default resolved, and its text as the run directory
// keeps it. The schema is configs/run_config.proto; what must hold between fields is checked in
// run_config_check. Nothing outside launch/run_config*.cpp sees Protocol Buffers.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/device.hpp"
#include "core/dtype.hpp"
#include "launch/run_config_check.hpp"
#include "parallel/process_grid.hpp"
#include "rl/trainer_config.hpp"

namespace coppice {

struct RunConfig {
  std::string model_checkpoint;  ///< or
  std::string model_hf;          ///< a Hugging Face directory: one of them is given
  std::string rollouts;
  std::int64_t epochs = 1;
  bool shuffle = true;
  DeviceKind device = DeviceKind::kCpu;
  DType precision = DType::kF32;
  GridSizes grid;
  SequenceParallel sequence_parallel = SequenceParallel::kNo;
  bool overlap = true;                              ///< collectives under compute
  GridDevice::Axes axes = GridDevice::Axes::kNccl;  ///< on CUDA devices
  double watchdog_seconds = 600;
  int threads_per_rank = 1;
  /// How a message about parallel.tensor begins: which sizes are valid shows only with the model.
  std::string tensor_place;
  bool resume = true;  ///< goes on from a run directory's checkpoints; else refuses them
  /// Everything the trainer is told. Its run_config_textproto is the resolved config in text
  /// format, which reads back as this very config.
  TrainerConfig trainer;

  const std::string& text() const { return trainer.run_config_textproto; }
  /// The text without what may differ between the ranks of a job.
  std::string common_text() const;
};

/// Reads a config file and then `--set` assignments ("path.to.field=value"). `job` is what runs
/// now; plan has the product of its grid as the number of ranks, all of them on this machine.
///
/// Errors    ConfigError with every problem: unknown fields, wrong types, ranges, missing files,
///           impossible combinations, each with file, line, column and field path
RunConfig load_run_config(const std::filesystem::path& path, const std::vector<std::string>& set,
                          RunConfigUse use, const JobSize& job = {});

/// The config of `coppice score`: defaults, `--set` assignments of parallel, numerics, batching and
/// threads_per_rank, and the flags. A flag together with the field it stands for is refused.
struct ScoreFlags {
  std::string sharing;    ///< "", "grouped", "repeated"
  std::string precision;  ///< "", "f32", "f64", "bf16"
  std::string device;     ///< "auto", "cpu", "cuda"
};
/// Errors    ConfigError with every problem
RunConfig make_score_config(const ScoreFlags& flags, const std::vector<std::string>& set,
                            const JobSize& job = {});

/// What forbids that a run begun with config `before` goes on with `now`: one line for each changed
/// field that may not change. Both are resolved texts; `origin` says where `before` was found.
std::vector<std::string> changes_that_forbid_resume(const std::string& before,
                                                    const std::string& now,
                                                    const std::string& origin);

/// The grid that a resolved config's text tells; nothing where the text is none.
std::optional<GridSizes> grid_of(const std::string& text);

}  // namespace coppice
