#include "launch/grid_check.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "configs/run_config.pb.h"

namespace coppice {
namespace {

// "1", "1 or 3", "1, 3 or 9"
std::string any_of(const std::vector<std::int64_t>& sizes) {
  if (sizes.size() == 1) return std::to_string(sizes[0]);
  return fmt::format("{} or {}", fmt::join(sizes.begin(), sizes.end() - 1, ", "), sizes.back());
}

std::string ranks_run(std::int64_t ranks) {
  return ranks == 1 ? "1 rank runs" : fmt::format("{} ranks run", ranks);
}

}  // namespace

void check_grid(const config::Parallel& parallel, RunConfigText& text, std::int64_t ranks) {
  constexpr std::int64_t kMost = 1 << 20;  // far beyond any job, and products of three fit
  bool sound = true;
  const auto size = [&](const std::string& path, std::int64_t value, std::int64_t least) {
    if (value >= least && value <= kMost) return;
    sound = false;
    if (value < least)
      text.add_problem(path, fmt::format("{} is too small. Give {} or more.", value, least));
    else
      text.add_problem(path, fmt::format("{} is more ranks than any job has. Use less.", value));
  };
  size("parallel.tensor", parallel.tensor(), 1);
  size("parallel.context", parallel.context(), 1);
  size("parallel.data", parallel.data(), 0);
  if (!sound) return;
  if (ranks == 0) {  // as many as it asks for
    ranks = parallel.tensor() * parallel.context() * std::max<std::int64_t>(1, parallel.data());
    if (ranks > kMost)
      text.add_problem("parallel",
                       fmt::format("{} ranks are more than any job has. Use less.", ranks));
    return;
  }

  // The field to blame is the one whose change would be smallest: data, where it was given.
  const std::int64_t inner = parallel.tensor() * parallel.context();
  const bool data_given = parallel.data() > 0;
  const std::string blamed = data_given               ? "parallel.data"
                             : parallel.context() > 1 ? "parallel.context"
                                                      : "parallel.tensor";
  if (data_given && inner * parallel.data() == ranks) return;
  if (!data_given && ranks % inner == 0) return;
  const std::string grid =
      data_given ? fmt::format("tensor {} x context {} x data {} = {} ranks are", parallel.tensor(),
                               parallel.context(), parallel.data(), inner * parallel.data())
                 : fmt::format("tensor {} x context {} = {} ranks or a multiple of them are",
                               parallel.tensor(), parallel.context(), inner);
  std::string cure = data_given ? fmt::format("Start {} ranks", inner * parallel.data())
                                : fmt::format("Start {} ranks or a multiple", inner);
  if (ranks % inner == 0) {
    cure += fmt::format(", or set parallel.data to {} (0 takes what is left)", ranks / inner);
  } else {
    std::vector<std::int64_t> divisors;
    for (std::int64_t divisor = 1; divisor <= ranks; ++divisor)
      if (ranks % divisor == 0) divisors.push_back(divisor);
    cure += fmt::format(", or choose tensor x context = {}", any_of(divisors));
    if (data_given) cure += " and data: 0, which takes what is left";
  }
  text.add_problem(blamed, fmt::format("{} asked for, but {} (each place of the grid is one "
                                       "rank). {}.",
                                       grid, ranks_run(ranks), cure));
}

std::int64_t data_ranks(const config::Parallel& parallel, std::int64_t ranks) {
  if (parallel.data() > 0) return parallel.data();
  return std::max<std::int64_t>(1, ranks / (parallel.tensor() * parallel.context()));
}

std::vector<std::int64_t> tensor_sizes(const ModelConfig& model) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = 1; size <= model.num_attention_heads; ++size)
    if (tensor_problems(model, size, "").empty()) sizes.push_back(size);
  return sizes;
}

std::vector<std::string> tensor_problems(const ModelConfig& model, std::int64_t tensor,
                                         const std::string& place) {
  std::vector<std::string> reasons;
  const auto check = [&](bool fits, const char* name, std::int64_t value, const char* relation,
                         const char* why) {
    if (!fits)
      reasons.push_back(fmt::format("{}{} = {} {} parallel.tensor = {} ({}).",
                                    place.empty() ? "" : place + ": ", name, value, relation,
                                    tensor, why));
  };
  check(model.num_attention_heads % tensor == 0, "num_attention_heads", model.num_attention_heads,
        "is not divisible by", "each rank needs whole heads");
  check(model.num_key_value_heads % tensor == 0 || tensor % model.num_key_value_heads == 0,
        "num_key_value_heads", model.num_key_value_heads, "neither divides nor is divisible by",
        "each rank needs whole heads, or several ranks one");
  check(model.intermediate_size % tensor == 0, "intermediate_size", model.intermediate_size,
        "is not divisible by", "each rank needs equally many columns");
  if (!reasons.empty() && !place.empty())
    for (auto& reason : reasons)
      reason += fmt::format(" This model allows {}.", any_of(tensor_sizes(model)));
  return reasons;
}

}  // namespace coppice
