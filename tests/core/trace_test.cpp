#include "core/trace.hpp"

#include <gtest/gtest.h>

namespace coppice {
namespace {

// Mutation seen red: the parent not taken back at a scope's end (the second op within the first).
TEST(Trace, HoldsScopesInTheOrderOfTheirBeginningsAndKnowsWhatTheyLieIn) {
  Trace trace;
  {
    const TraceScope step(&trace, TraceKind::kStep, "step", {.index = 3});
    { const TraceScope op(&trace, "first", {.rows = 5, .flops = 10.0}); }
    { const TraceScope op(&trace, "second"); }
  }
  { const TraceScope after(&trace, TraceKind::kPhase, "checkpoint"); }
  const auto events = trace.events();
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[0].kind, TraceKind::kStep);
  EXPECT_EQ(events[0].facts.index, 3);
  EXPECT_EQ(events[0].parent, TraceEvent::kNone);
  EXPECT_STREQ(events[1].name, "first");
  EXPECT_EQ(events[1].kind, TraceKind::kOp);
  EXPECT_EQ(events[1].facts.rows, 5);
  EXPECT_EQ(events[1].facts.flops, 10.0);
  EXPECT_EQ(events[1].parent, 0);
  EXPECT_EQ(events[2].parent, 0);
  EXPECT_EQ(events[3].parent, TraceEvent::kNone);
  const auto end = [](const TraceEvent& event) { return event.begin_ns + event.duration_ns; };
  EXPECT_LE(events[0].begin_ns, events[1].begin_ns);
  EXPECT_LE(end(events[1]), events[2].begin_ns);
  EXPECT_LE(end(events[2]), end(events[0]));
  EXPECT_LE(end(events[0]), events[3].begin_ns);
  EXPECT_EQ(trace.omitted(), 0);
}

// What began while there was room is whole. Mutation seen red: >= capacity - 1.
TEST(Trace, CountsWhatItHasNoRoomForAndKeepsTheRestWhole) {
  Trace trace(2);
  {
    const TraceScope outer(&trace, "outer");
    { const TraceScope inner(&trace, "inner"); }
    { const TraceScope third(&trace, "third"); }
    { const TraceScope fourth(&trace, "fourth"); }
  }
  const auto events = trace.events();
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(trace.omitted(), 2);
  EXPECT_STREQ(events[1].name, "inner");
  const auto end = events[0].begin_ns + events[0].duration_ns;
  EXPECT_GE(trace.full_ns(), events[1].begin_ns + events[1].duration_ns);
  EXPECT_LE(trace.full_ns(), end);
}

TEST(Trace, TakesOutWhatIsForgotten) {
  Trace trace;
  {
    TraceScope step(&trace, TraceKind::kStep, "step");
    { const TraceScope phase(&trace, TraceKind::kPhase, "plan"); }
    step.forget();
    const TraceScope next(&trace, "next");
  }
  ASSERT_EQ(trace.events().size(), 1U);
  EXPECT_STREQ(trace.events()[0].name, "next");
  EXPECT_EQ(trace.events()[0].parent, TraceEvent::kNone);
}

TEST(Trace, OfNobodyIsAskedForNothing) {
  TraceScope scope(nullptr, TraceKind::kStep, "step");
  scope.forget();
}

}  // namespace
}  // namespace coppice
