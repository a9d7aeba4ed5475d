#pragma once
// The metrics of a run as TensorBoard reads them: run_dir/events.out.tfevents.*, one file for each
// start. Values are those of metrics.jsonl; what they mean is told there and in docs/metrics.md.
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>

namespace coppice {

/// Appends steps, each in one write, so that a killed run leaves whole steps behind.
///
///   A run that is taken up again begins a file of its own, which tells TensorBoard that steps
///   beyond `last_step` in the older ones are void; these files stay as they are. Steps up to
///   `last_step` that metrics.jsonl holds and no file does (a run killed between the two, or an
///   older program's) are written first, at the present time.
///
/// Dtypes    f32, as TensorBoard keeps scalars: each value rounded once
/// Effects   nothing is made before the first step or settle(); an older file is only read
/// Errors    IoError with the system's reason
/// Source    TensorBoard's event_accumulator: file version 2, SessionLog START
/// Oracle    tools/check_tensorboard.py, by TensorBoard's own reader
class TensorboardFile {
 public:
  /// `host` names the machine in the file's name. Only one rank has one.
  TensorboardFile(std::filesystem::path run_dir, std::int64_t last_step, std::string host);
  ~TensorboardFile();
  TensorboardFile(const TensorboardFile&) = delete;
  TensorboardFile& operator=(const TensorboardFile&) = delete;

  /// One line of metrics.jsonl.
  void write(const std::string& metrics_line);
  /// Writes what is missing up to `last_step`; no file is made where nothing is.
  void settle();

 private:
  void open(std::int64_t first_step);
  void append(const std::string& bytes);
  void put(std::int64_t step, const std::string& metrics_line);

  std::filesystem::path run_dir_, path_;
  std::int64_t last_step_;
  std::string host_;
  int descriptor_ = -1;
  bool settled_ = false;
  std::set<std::string> described_;  // tags whose meaning this file tells
};

}  // namespace coppice
