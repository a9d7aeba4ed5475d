#include "launch/job.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "core/error.hpp"
#include "launch/host.hpp"
#include "launch/one_line.hpp"

namespace coppice {
namespace {

using Json = nlohmann::json;

// A rank that fails gives the others this long to come with the same problem.
constexpr double kGrace = 1.0;

void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

std::uint64_t hash_of(const std::vector<std::string>& lines) {
  std::string all;
  for (const auto& line : lines) all += line + '\n';
  return XXH3_64bits(all.data(), all.size());
}

struct Word {
  std::string host;
  bool ends = false;
  int status = 0;
  std::uint64_t problems = 0;  // their hash
  std::vector<std::uint64_t> hashes;
};

std::string text_of(const Word& word) {
  return Json::array({word.host, word.ends, word.status, word.problems, word.hashes})
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<Word> words_of(const std::vector<std::string>& texts) {
  std::vector<Word> words;
  for (const auto& text : texts) {
    const Json json = Json::parse(text);
    words.push_back({json[0], json[1], json[2], json[3], json[4]});
  }
  return words;
}

// "in step 3, backward, layer 2"
std::string place_of(const Activity& activity) {
  std::string place = fmt::format("in step {}, {}", activity.step, activity.phase);
  if (activity.layer >= 0) place += fmt::format(", layer {}", activity.layer);
  return place;
}

}  // namespace

Job::Job(OnSignal on_signal)
    : stop_(on_signal == OnSignal::kFinishStep ? std::optional<StopSignal>(std::in_place)
                                               : std::optional<StopSignal>()),
      mpi_({.notice = [](const std::string& text) {
        fmt::print(stderr, "coppice: error [{}]: {}\n", host_name(), text);
      }}) {}

int Job::default_threads() const { return std::max(1, mpi_.local_cores() / mpi_.local_size()); }

WatchdogConfig Job::watchdog(double seconds) const {
  // From giving up until mpirun's last process is gone took up to 1.5 s; the whole is bounded.
  constexpr double kToEnd = 1.5;
  return {.seconds = seconds - std::min(kToEnd, seconds / 2),
          .stop_requested = [this] { return stop_requested(); },
          .notice =
              [this](const std::string& text) {
                fmt::print(stderr, "coppice: notice [rank {}, {}]: {}\n", rank(), mpi_.host(),
                           text);
              }};
}

void Job::agree(std::vector<Fingerprint> mine) {
  const bool first = command_.has_value();
  if (first) mine.insert(mine.begin(), *std::exchange(command_, {}));
  Word word;
  word.host = mpi_.host();
  for (const auto& print : mine) word.hashes.push_back(print.hash);
  const auto texts = mpi_.gather(text_of(word), patience_);
  if (!texts)
    throw CommError(fmt::format(
        "not all ranks have read their input within {:.0f} s: {}. Look at what those ranks do, or "
        "raise limits.watchdog_seconds.",
        *patience_, mpi_.whereabouts()));
  const auto words = words_of(*texts);
  if (std::any_of(words.begin(), words.end(), [](const Word& other) { return other.ends; }))
    throw PeerFailed{};
  const auto same_command = [&](const Word& other) {
    return !first || other.hashes[0] == words[0].hashes[0];
  };
  // Ranks of different commands have read different things.
  if (!std::all_of(words.begin(), words.end(), same_command)) mine.resize(1);
  Problems problems;
  for (std::size_t i = 0; i < mine.size(); ++i)
    for (std::size_t rank = 1; rank < words.size(); ++rank) {
      if (words[rank].hashes.at(i) == words[0].hashes.at(i)) continue;
      problems.add(
          "{} on rank {} ({}) is not what it is on rank 0 ({}): hash {:016x} against {:016x} "
          "(ranks that work on different input would train nonsense). Give all ranks the same.",
          mine[i].what, rank, words[rank].host, words[0].host, words[rank].hashes[i],
          words[0].hashes[i]);
    }
  problems.throw_if_any<DataError>();
}

int Job::end(Ending ending) {
  std::fflush(stdout);
  const Activity& activity = mpi_.activity();
  // A failed wait tells its place itself; refused input has none.
  if (ending.status == 1 && !ending.within_collective && activity.step > 0)
    for (auto& problem : ending.problems) problem += fmt::format(" [{}]", place_of(activity));
  if (ending.within_collective) end_all(ending);
  const bool failed = !ending.problems.empty();
  const std::string text = text_of({.host = mpi_.host(),
                                    .ends = true,
                                    .status = ending.status,
                                    .problems = failed ? hash_of(ending.problems) : 0,
                                    .hashes = {}});
  for (;;) {
    const auto texts = mpi_.gather(text, failed ? kGrace : patience_);
    if (!texts && failed) end_all(ending);
    if (!texts)
      end_all(
          {1,
           {fmt::format("not all ranks have ended within {:.0f} s after this one: {}. Look at what "
                        "those ranks do, or raise limits.watchdog_seconds.",
                        *patience_, mpi_.whereabouts())}});
    const auto words = words_of(*texts);
    // Who came to agree() instead has now heard of the end, and comes next.
    if (!std::all_of(words.begin(), words.end(), [](const Word& word) { return word.ends; }))
      continue;
    const auto same = [&](const Word& word) { return word.problems == hash_of(ending.problems); };
    if (failed && std::none_of(words.begin(), words.begin() + rank(), same))
      report(ending.problems);
    int status = 0;
    for (const auto& word : words) status = std::max(status, word.status);
    return status;
  }
}

void Job::report(const std::vector<std::string>& problems) const {
  std::string lines;  // written at once, so that ranks do not mix their lines
  for (const auto& problem : problems)
    lines +=
        fmt::format("coppice: error [rank {}, {}]: {}\n", rank(), mpi_.host(), one_line(problem));
  std::fwrite(lines.data(), 1, lines.size(), stderr);
  std::fflush(stderr);
}

void Job::end_all(const Ending& ending) {
  // Ranks that fail at the same time do so for one reason as a rule: the first of them tells it.
  constexpr double kApart = 0.15, kUntilKilled = 1;
  sleep_seconds(kApart * std::min(rank(), 20));
  if (mpi_.claim_report())
    report(ending.problems);
  else
    sleep_seconds(kUntilKilled);  // by mpirun, unless its host is out of reach
  mpi_.abort(std::max(1, ending.status));
}

}  // namespace coppice
