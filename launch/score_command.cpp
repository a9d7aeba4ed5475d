#include "launch/score_command.hpp"

#include "core/error.hpp"

namespace coppice {
namespace {

struct Options {
  std::string checkpoint, rollouts, out;
  std::optional<std::string> sharing, precision, fill;
  std::string device = "auto";
  double temperature = 1.0;
  std::vector<std::string> set;
};

void score(const Options&) { throw Error("score is not built yet."); }

}  // namespace

void add_score_command(Commands& commands) {
  auto options = std::make_shared<Options>();
  commands
      .add("score", "Log-probabilities and entropies of every response token of a rollouts file",
           [options] { score(*options); })
      .option("--checkpoint", options->checkpoint, "model or checkpoint (.h5)", Need::kRequired)
      .option("--rollouts", options->rollouts, "rollouts file (.jsonl)", Need::kRequired)
      .option("--out", options->out, "file to write (.jsonl)", Need::kRequired)
      .choice("--sharing", options->sharing, {"grouped", "repeated"},
              "compute a group's prompt once, or once for each response [grouped]")
      .choice("--precision", options->precision, {"f32", "f64", "bf16"},
              "element type of the computation [f32]")
      .option("--temperature", options->temperature, "divides the logits [1.0]")
      .choice("--device", options->device, {"auto", "cpu", "cuda"}, "where to compute [auto]")
      .choice("--fill", options->fill, {"old_logprobs", "ref_logprobs"},
              "write the rollouts file with this field set instead of scores")
      .list("--set", options->set,
            "FIELD=VALUE for a field of parallel, numerics or batching, as in a run config");
}

}  // namespace coppice
