#include "rl/rollouts.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <unordered_map>

#include "core/regular_file.hpp"
#include "rl/rollout_line.hpp"

namespace coppice {
namespace {

constexpr std::int64_t kMostProblems = 200;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

// Collects the problems of a file; past kMostProblems it only counts.
class FileProblems {
 public:
  explicit FileProblems(std::string file) : file_(std::move(file)) {}

  void add(std::int64_t line, const std::string& text) {
    if (++count_ <= kMostProblems) problems_.add("{}:{}: {}", file_, line, text);
  }
  void add_for_file(const std::string& text) {
    ++count_;
    problems_.add("{}: {}", file_, text);
  }
  void throw_if_any() {
    if (count_ > kMostProblems)
      problems_.add("{}: and {} more problems.", file_, count_ - kMostProblems);
    problems_.throw_if_any<DataError>();
  }

 private:
  std::string file_;
  Problems problems_;
  std::int64_t count_ = 0;
};

// Checks one line's fields against each other and against what the command needs.
class LineChecks {
 public:
  LineChecks(ParsedLine& parsed, const RolloutNeeds& needs) : parsed_(parsed), needs_(needs) {}

  void run() {
    check_ids("prompt_ids", parsed_.group.prompt_ids, kGroup);
    if (parsed_.has_prompt && parsed_.group.prompt_ids.empty() &&
        !has_problem(kGroup, "prompt_ids"))
      problem(kGroup,
              "prompt_ids is empty (the first response token is predicted by the last "
              "prompt token).");
    check_advantages_all_or_none();
    for (std::int64_t i = 0; i < std::ssize(parsed_.responses); ++i)
      check_response(i, parsed_.responses[static_cast<std::size_t>(i)]);
  }

 private:
  static constexpr std::int64_t kGroup = -1;

  template <class... Args>
  void problem(std::int64_t response, fmt::format_string<Args...> format, Args&&... args) {
    parsed_.problems.push_back({response, fmt::format(format, std::forward<Args>(args)...)});
  }
  void check_ids(const char* field, const std::vector<std::int32_t>& ids, std::int64_t response) {
    if (needs_.vocab_size == 0) return;
    const auto outside = [&](std::int32_t id) { return id >= needs_.vocab_size; };
    const auto first = std::find_if(ids.begin(), ids.end(), outside);
    if (first == ids.end()) return;
    const auto count = std::count_if(first, ids.end(), outside);
    problem(response, "{}[{}] = {} is outside the model's vocabulary of {}{}.", field,
            first - ids.begin(), *first, needs_.vocab_size,
            count > 1 ? fmt::format(" (the first of {})", count) : "");
  }

  void check_advantages_all_or_none() {
    // An empty response has no token to give one for, so it does not count.
    const auto counts = [](const ParsedResponse& r) { return !r.response.ids.empty(); };
    const auto has = [&](const ParsedResponse& r) { return counts(r) && r.has_advantages; };
    const auto lacks = [&](const ParsedResponse& r) { return counts(r) && !r.has_advantages; };
    const auto& all = parsed_.responses;
    const auto with = std::find_if(all.begin(), all.end(), has);
    const auto without = std::find_if(all.begin(), all.end(), lacks);
    given_advantages_ = with != all.end();
    if (with != all.end() && without != all.end())
      problem(without - all.begin(),
              "advantages are missing, but response {} has them (all responses of a group have "
              "them or none).",
              with - all.begin());
  }

  void check_length(std::int64_t i, const ParsedResponse& parsed, const char* field,
                    std::int64_t length) {
    const auto tokens = std::ssize(parsed.response.ids);
    if (length != tokens && !has_problem(i, field))
      problem(i, "{} has {} entries for {} ids. Give one for each id.", field, length, tokens);
  }

  // Entries where the mask is 1 must be finite numbers.
  void check_values(std::int64_t i, const char* field, const std::vector<double>& values,
                    const std::vector<std::uint8_t>& mask) {
    std::int64_t bad = 0, first = 0;
    for (std::size_t t = 0; t < std::min(values.size(), mask.size()); ++t)
      if (mask[t] == 1 && !std::isfinite(values[t]) && bad++ == 0)
        first = static_cast<std::int64_t>(t);
    if (bad == 0) return;
    problem(i, "{}[{}] is {} where loss_mask is 1 (only a masked token can do without){}.", field,
            first, std::isnan(values[static_cast<std::size_t>(first)]) ? "null" : "infinite",
            bad > 1 ? fmt::format(" (the first of {})", bad) : "");
  }

  void check_response(std::int64_t i, ParsedResponse& parsed) {
    Response& response = parsed.response;
    if (!parsed.has_ids) return;
    check_ids("ids", response.ids, i);
    const auto rows = std::ssize(parsed_.group.prompt_ids) + std::ssize(response.ids);
    if (needs_.max_positions > 0 && rows > needs_.max_positions)
      problem(i,
              "prompt and response have {} + {} = {} tokens, the model's maximum position is {}.",
              parsed_.group.prompt_ids.size(), response.ids.size(), rows, needs_.max_positions);
    if (parsed.has_mask) check_length(i, parsed, "loss_mask", std::ssize(response.loss_mask));
    if (parsed.has_old) check_length(i, parsed, "old_logprobs", std::ssize(response.old_logprobs));
    if (parsed.has_ref) check_length(i, parsed, "ref_logprobs", std::ssize(response.ref_logprobs));
    if (parsed.has_advantages)
      check_length(i, parsed, "advantages", std::ssize(response.advantages));

    if (!parsed.has_mask || (needs_.mask_truncated && response.truncated))
      response.loss_mask.assign(response.ids.size(),
                                needs_.mask_truncated && response.truncated ? 0 : 1);
    if (needs_.old_values)
      check_values(i, "old_logprobs", response.old_logprobs, response.loss_mask);
    if (needs_.ref_values)
      check_values(i, "ref_logprobs", response.ref_logprobs, response.loss_mask);
    if (needs_.advantage_values)
      check_values(i, "advantages", response.advantages, response.loss_mask);
    if (needs_.rewards && !given_advantages_ && !response.reward && !has_problem(i, "reward"))
      problem(i,
              "reward is missing (advantages come from the rewards of all responses). Give a "
              "reward, or per-token advantages for the whole group.");
    if (needs_.ref_logprobs && !parsed.has_ref && response.loss_tokens() > 0)
      problem(i,
              "ref_logprobs are missing (loss.kl_coef > 0 compares with them). Add them with "
              "`coppice score --fill ref_logprobs`.");
  }

  bool has_problem(std::int64_t response, std::string_view field) const {
    return std::any_of(parsed_.problems.begin(), parsed_.problems.end(), [&](const LineProblem& p) {
      return p.response == response && p.text.starts_with(field);
    });
  }

  ParsedLine& parsed_;
  const RolloutNeeds& needs_;
  bool given_advantages_ = false;
};

// What ties lines together: unique names, old log-probs for all or for none.
class FileChecks {
 public:
  void add(const ParsedLine& parsed, std::int64_t line, FileProblems& problems) {
    const std::string& name = parsed.group.name;
    if (parsed.has_name) {
      const auto [first, is_new] = lines_.emplace(name, line);
      if (!is_new)
        problems.add(line, fmt::format("group \"{}\": the name stands on line {} already. Names "
                                       "must differ.",
                                       name, first->second));
    }
    for (std::size_t i = 0; i < parsed.responses.size(); ++i) {
      const ParsedResponse& response = parsed.responses[i];
      if (!response.has_ids || response.response.ids.empty()) continue;
      auto& count = response.has_old ? with_old_ : without_old_;
      auto& first = response.has_old ? first_with_ : first_without_;
      if (count++ == 0) first = {line, fmt::format("group \"{}\", response {}", name, i)};
    }
  }

  void finish(FileProblems& problems) {
    if (with_old_ == 0 || without_old_ == 0) return;
    problems.add(
        first_without_.line,
        fmt::format("{}: old_logprobs are missing{}, but line {}, {} has them (all "
                    "responses of a file have them or none). Remove them all; `coppice score "
                    "--fill old_logprobs` can then give every response its own.",
                    first_without_.place,
                    without_old_ > 1 ? fmt::format(" (the first of {})", without_old_) : "",
                    first_with_.line, first_with_.place));
  }

 private:
  struct Place {
    std::int64_t line = 0;
    std::string place;
  };
  std::unordered_map<std::string, std::int64_t> lines_;
  std::int64_t with_old_ = 0, without_old_ = 0;
  Place first_with_, first_without_;
};

std::string with_place(const ParsedLine& parsed, const LineProblem& problem) {
  std::string place;
  if (parsed.has_name) place = fmt::format("group \"{}\"", parsed.group.name);
  if (problem.response >= 0)
    place += fmt::format("{}response {}", place.empty() ? "" : ", ", problem.response);
  return place.empty() ? problem.text : place + ": " + problem.text;
}

}  // namespace

std::int64_t Response::loss_tokens() const {
  return std::count(loss_mask.begin(), loss_mask.end(), std::uint8_t{1});
}

std::vector<Group> read_rollouts(const std::filesystem::path& path, const RolloutNeeds& needs) {
  FileProblems problems(path.string());
  if (const std::string why = why_unreadable(path); !why.empty()) {
    problems.add_for_file(fmt::format("the rollouts cannot be opened ({}).", why));
    problems.throw_if_any();
  }
  std::ifstream file(path, std::ios::binary);

  std::vector<Group> groups;
  RolloutLineParser parser;
  FileChecks file_checks;
  std::string line;
  std::int64_t number = 0, lines_with_text = 0;
  while (std::getline(file, line)) {
    if (++number == 1 && line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    ++lines_with_text;
    ParsedLine parsed = parser.parse(line);
    if (parsed.is_json_object) {
      LineChecks(parsed, needs).run();
      file_checks.add(parsed, number, problems);
    }
    std::stable_sort(parsed.problems.begin(), parsed.problems.end(),
                     [](const auto& a, const auto& b) { return a.response < b.response; });
    for (const LineProblem& problem : parsed.problems)
      problems.add(number, with_place(parsed, problem));
    if (!parsed.problems.empty()) continue;
    parsed.group.line = number;
    for (ParsedResponse& response : parsed.responses)
      parsed.group.responses.push_back(std::move(response.response));
    groups.push_back(std::move(parsed.group));
  }
  if (file.bad()) problems.add_for_file("reading the rollouts failed before their end.");
  if (lines_with_text == 0) problems.add_for_file("the file holds no group.");
  file_checks.finish(problems);
  problems.throw_if_any();
  return groups;
}

bool has_old_logprobs(const std::vector<Group>& groups) {
  for (const Group& group : groups)
    for (const Response& response : group.responses)
      if (!response.ids.empty()) return !response.old_logprobs.empty();
  return false;
}

bool has_advantages(const Group& group) {
  return std::any_of(group.responses.begin(), group.responses.end(),
                     [](const Response& response) { return !response.advantages.empty(); });
}

}  // namespace coppice
