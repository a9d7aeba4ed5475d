#include "launch/trace_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "checkpoint/pending_file.hpp"
#include "launch/output_path.hpp"
#include "parallel/exchange.hpp"

namespace coppice {
namespace {

namespace fs = std::filesystem;

fs::path whole(const fs::path& path) {
  std::error_code error;
  fs::path place = fs::weakly_canonical(fs::absolute(path, error), error);
  return place.has_filename() ? place : place.parent_path();
}

bool holds(const fs::path& directory, const fs::path& path) {
  const fs::path rest = path.lexically_relative(directory);
  return !rest.empty() && *rest.begin() != "..";
}

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

using Text = std::back_insert_iterator<std::string>;

// Microseconds, as the format wants them, with every nanosecond.
void put_time(Text out, const char* name, std::int64_t ns) {
  fmt::format_to(out, ",\"{}\":{}.{:03}", name, ns / 1000, ns % 1000);
}

bool is_numbered(TraceKind kind) {
  return kind == TraceKind::kStep || kind == TraceKind::kMicrobatch || kind == TraceKind::kLayer;
}

// Where the event lies: the numbers and the phase of those around it, itself included.
void put_place(Text out, std::span<const TraceEvent> events, const TraceEvent& event) {
  constexpr std::array kTold = {TraceKind::kStep, TraceKind::kMicrobatch, TraceKind::kPhase,
                                TraceKind::kLayer};
  std::array<const TraceEvent*, kTold.size()> around{};
  for (const TraceEvent* at = &event;; at = &events[static_cast<std::size_t>(at->parent)]) {
    const auto told = std::find(kTold.begin(), kTold.end(), at->kind) - kTold.begin();
    if (told < std::ssize(kTold) && around[static_cast<std::size_t>(told)] == nullptr)
      around[static_cast<std::size_t>(told)] = at;  // the innermost
    if (at->parent == TraceEvent::kNone) break;
  }
  for (const TraceEvent* at : around) {
    if (at == nullptr) continue;
    if (is_numbered(at->kind))
      fmt::format_to(out, "\"{}\":{},", name_of(at->kind), at->facts.index);
    else
      fmt::format_to(out, "\"{}\":\"{}\",", name_of(at->kind), at->name);
  }
}

void put_facts(Text out, const TraceEvent& event) {
  const TraceFacts& facts = event.facts;
  if (facts.rows >= 0) fmt::format_to(out, "\"rows\":{},", facts.rows);
  if (facts.flops > 0) {
    fmt::format_to(out, "\"flops\":{:.0f},", facts.flops);
    if (event.duration_ns > 0)
      fmt::format_to(out, "\"gflop_per_second\":{:.2f},",
                     facts.flops / static_cast<double>(event.duration_ns));
  }
  if (facts.axis != nullptr) fmt::format_to(out, "\"axis\":\"{}\",", facts.axis);
  if (facts.bytes >= 0) fmt::format_to(out, "\"bytes\":{},", facts.bytes);
}

struct EventRow {
  int rank, thread;
  std::int64_t shift;  // of the rank's times
};

void put_event(std::string& text, std::span<const TraceEvent> events, const TraceEvent& event,
               const EventRow& row) {
  COPPICE_CHECK(event.duration_ns != TraceEvent::kOpen, "{} {} has not ended", name_of(event.kind),
                event.name);
  const Text out(text);
  fmt::format_to(out, "{{\"ph\":\"X\",\"pid\":{},\"tid\":{}", row.rank, row.thread);
  put_time(out, "ts", event.begin_ns + row.shift);
  put_time(out, "dur", event.duration_ns);
  fmt::format_to(out, ",\"cat\":\"{}\",\"name\":\"{}", name_of(event.kind), event.name);
  if (is_numbered(event.kind)) fmt::format_to(out, " {}", event.facts.index);
  text += "\",\"args\":{";
  put_place(out, events, event);
  put_facts(out, event);
  if (text.back() == ',') text.pop_back();
  text += "}},\n";
}

}  // namespace

void check_trace_file(const fs::path& file, const fs::path& run_dir,
                      const std::vector<fs::path>& inputs, Problems& problems) {
  constexpr std::array<std::string_view, 4> kOfTheRun = {"config.textproto", "metrics.jsonl",
                                                         "checkpoints", "."};
  const fs::path place = whole(file), run = whole(run_dir);
  const auto used = [&] {
    const std::string within = place.lexically_relative(run).begin()->string();
    return std::find(kOfTheRun.begin(), kOfTheRun.end(), within) != kOfTheRun.end();
  };
  std::error_code error;
  if (!file.empty() && (holds(place, run) || (holds(run, place) && used())))
    problems.add("--trace {}: is a place that the run itself uses. Give another name.",
                 file.string());
  else if (file.has_filename() && place.parent_path() == run && !fs::exists(run, error))
    return;
  else
    check_output_file(file, inputs, problems, "--trace");
}

std::string trace_json(const Trace& trace, const TracedRank& of, std::int64_t zero_unix_ns) {
  const auto events = trace.events();
  const std::int64_t shift = trace.start_unix_ns() - zero_unix_ns;
  std::string text;
  const Text out(text);
  const auto about = [&](const char* what, const std::string& value, int thread = 0) {
    fmt::format_to(out, "{{\"ph\":\"M\",\"pid\":{},\"tid\":{},\"name\":\"{}\",\"args\":{{{}}}}},\n",
                   of.rank, thread, what, value);
  };
  about("process_name", "\"name\":" + quoted(fmt::format("rank {} on {}", of.rank, of.host)));
  about("process_labels", fmt::format("\"labels\":\"tensor {}, context {}, data {}\"",
                                      of.place.tp_rank, of.place.cp_rank, of.place.dp_rank));
  about("process_sort_index", fmt::format("\"sort_index\":{}", of.rank));
  about("thread_name", "\"name\":\"main thread\"");
  for (const TraceEvent& event : events) put_event(text, events, event, {of.rank, 0, shift});
  // Collectives under compute: a row for each axis.
  std::vector<std::string_view> axes;
  for (const TraceEvent& event : trace.background()) {
    const auto found = std::find(axes.begin(), axes.end(), event.facts.axis);
    const auto row = static_cast<int>(found - axes.begin()) + 1;
    if (found == axes.end()) {
      axes.push_back(event.facts.axis);
      about("thread_name", fmt::format("\"name\":\"{} axis\"", event.facts.axis), row);
    }
    put_event(text, events, event, {of.rank, row, shift});
  }
  if (trace.omitted() > 0) {
    fmt::format_to(out, "{{\"ph\":\"i\",\"s\":\"p\",\"pid\":{},\"tid\":0", of.rank);
    put_time(out, "ts", trace.full_ns() + shift);
    fmt::format_to(out,
                   ",\"name\":\"the trace is full: events from here on are left out\","
                   "\"args\":{{\"omitted\":{}}}}},\n",
                   trace.omitted());
  }
  text.resize(text.size() - 2);
  return text;
}

void write_trace(const fs::path& file, const Trace& trace, ProcessGrid& grid,
                 const std::string& host) {
  grid.trace_to(nullptr);
  Communicator& world = grid.world();
  Stream stream{Device{}};
  std::int64_t minus_zero = -trace.start_unix_ns(), omitted = trace.omitted();
  world.all_reduce(stream, host_view(&minus_zero, {1}), ReduceOp::kMax);
  world.all_reduce(stream, host_view(&omitted, {1}), ReduceOp::kSum);
  const std::string mine = trace_json(trace, {world.rank(), host, grid.coordinates()}, -minus_zero);

  std::optional<PendingFile> pending;  // rank 0's
  std::int64_t at = 0;
  const auto write = [&](std::string_view text) {
    succeed_together(world, [&] {
      if (world.rank() != 0) return;
      if (!pending) pending.emplace(file);
      write_at(pending->descriptor(), at, text.data(), std::ssize(text), file);
      at += std::ssize(text);
    });
  };
  write("{\"traceEvents\":[\n");
  // One rank after the other, so that no rank holds the events of all.
  for (int rank = 0; rank < world.size(); ++rank) {
    write(world.size() == 1 ? mine : broadcast_text(world, mine, rank));
    if (rank + 1 < world.size()) write(",\n");
  }
  write(
      fmt::format("\n],\n\"displayTimeUnit\":\"ms\",\n\"otherData\":{{\"zero_unix_ns\":{},"
                  "\"most_events_of_a_rank\":{},\"omitted_events\":{}}}}}\n",
                  -minus_zero, trace.capacity(), omitted));
  succeed_together(world, [&] {
    if (pending) pending->commit();
  });
  if (world.rank() == 0 && omitted > 0)
    fmt::print(stderr,
               "--trace {}: {} events are left out (a trace holds the first {} of each rank). "
               "Trace fewer steps: limits.max_steps.\n",
               file.string(), omitted, trace.capacity());
}

}  // namespace coppice
