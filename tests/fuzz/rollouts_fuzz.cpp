// Any bytes as a rollouts file: refused with a DataError, or groups that keep what the reader
// promises, whatever a command needs of them.
#include <cmath>
#include <cstdlib>

#include "fuzz/memory_file.hpp"
#include "rl/rollouts.hpp"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

// A vector for every token, or none.
template <class T>
bool fits(const std::vector<T>& values, const coppice::Response& response) {
  return values.empty() || values.size() == response.ids.size();
}

void read(const std::string& path, const coppice::RolloutNeeds& needs) {
  try {
    const auto groups = coppice::read_rollouts(path, needs);
    require(!groups.empty());
    for (const auto& group : groups) {
      require(!group.prompt_ids.empty() && !group.responses.empty() && group.line > 0);
      for (const auto& response : group.responses) {
        require(response.loss_mask.size() == response.ids.size());
        require(fits(response.old_logprobs, response) && fits(response.ref_logprobs, response) &&
                fits(response.advantages, response));
        require(!response.reward || std::isfinite(*response.reward));
        for (const auto id : response.ids)
          require(id >= 0 && (needs.vocab_size == 0 || id < needs.vocab_size));
        for (std::size_t t = 0; needs.old_values && t < response.old_logprobs.size(); ++t)
          require(response.loss_mask[t] == 0 || std::isfinite(response.old_logprobs[t]));
      }
    }
  } catch (const coppice::DataError& error) {
    require(!error.problems().empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static coppice::test::MemoryFile memory;  // one for all inputs: making it is the slowest part
  memory.hold(data, size);
  read(memory.path(), {});
  read(memory.path(), {.vocab_size = 100,
                       .max_positions = 8,
                       .rewards = true,
                       .ref_logprobs = true,
                       .old_values = true,
                       .ref_values = true,
                       .advantage_values = true,
                       .mask_truncated = true});
  return 0;
}
