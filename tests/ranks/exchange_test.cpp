// Texts, sums and errors between ranks. Seen red: lengths rounded up to whole words; the error of
// the highest rank thrown; sums of the lower halves cut to 32 bits.
#include "parallel/exchange.hpp"

#include <gmock/gmock.h>

#include "core/error.hpp"
#include "parallel/mpi/mpi_session.hpp"
#include "ranks/ranks_session.hpp"

namespace coppice {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Communicator> world() {
  return test::ranks_session().split(0, "world", {.seconds = 60});
}

// Lengths around a word of 8 bytes, with zero bytes inside; rank 1 has nothing to say.
std::string text_of_rank(int rank) {
  if (rank == 1) return {};
  std::string text(static_cast<std::size_t>(6 + rank), static_cast<char>('a' + rank));
  text[2] = '\0';
  return text;
}

TEST(Exchange, GathersTextsOfAnyLengthInRankOrder) {
  const auto comm = world();
  std::vector<std::string> expected;
  for (int rank = 0; rank < comm->size(); ++rank) expected.push_back(text_of_rank(rank));
  EXPECT_EQ(all_gather_texts(*comm, text_of_rank(comm->rank())), expected);
  EXPECT_EQ(all_gather_texts(*comm, ""), std::vector<std::string>(expected.size()));
}

TEST(Exchange, BroadcastsTheTextOfOneRank) {
  const auto comm = world();
  for (int root = 0; root < comm->size(); ++root) {
    EXPECT_EQ(broadcast_text(*comm, text_of_rank(comm->rank()), root), text_of_rank(root));
  }
}

TEST(Exchange, SumsWrapAroundAt64Bits) {
  const auto comm = world();
  const auto n = static_cast<std::uint64_t>(comm->size());
  std::vector<std::uint64_t> numbers{0xFFFF'FFFF'FFFF'FFFFu, 0x8000'0000'0000'0001u, 0xFFFF'FFFFu,
                                     static_cast<std::uint64_t>(comm->rank())};
  sum_modulo_2_64(*comm, numbers);
  EXPECT_THAT(numbers, ElementsAre(0 - n, n % 2 * 0x8000'0000'0000'0000u + n, n * 0xFFFF'FFFFu,
                                   n * (n - 1) / 2));
}

TEST(Exchange, AllSucceedTogether) {
  const auto comm = world();
  int runs = 0;
  succeed_together(*comm, [&] { ++runs; });
  EXPECT_EQ(runs, 1);
}

// The last rank fails alone: the others learn its class and message.
TEST(Exchange, OneFailureBecomesTheErrorOfEveryRank) {
  const auto comm = world();
  const int last = comm->size() - 1;
  try {
    succeed_together(*comm, [&] {
      if (comm->rank() == last) throw IoError("the disk is full: 12:34");
    });
    FAIL();
  } catch (const IoError& error) {
    const std::string expected = fmt::format("rank {}: the disk is full: 12:34", last);
    EXPECT_EQ(std::string(error.what()), last == 0 ? "the disk is full: 12:34" : expected);
  }
  // The ranks are in step: the next exchange works.
  EXPECT_EQ(broadcast_text(*comm, text_of_rank(comm->rank())), text_of_rank(0));
}

TEST(Exchange, TheLowestFailingRankIsNamed) {
  const auto comm = world();
  if (comm->size() == 1) return;
  try {
    succeed_together(*comm, [&] {
      if (comm->rank() == 1) throw ContractError("one");
      if (comm->rank() > 1) throw std::runtime_error("two");
    });
    FAIL();
  } catch (const ContractError& error) {
    EXPECT_STREQ(error.what(), "rank 1: one");
  }
}

TEST(Exchange, InputProblemsOfAllRanksAreToldOnce) {
  const auto comm = world();
  try {
    succeed_together(*comm, [&] {
      std::vector<std::string> problems{"a.h5: all see this"};
      if (comm->rank() == comm->size() - 1) problems.push_back("a.h5: only the last sees this");
      throw DataError(problems);
    });
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.problems(), ElementsAre("a.h5: all see this", HasSubstr("only the last")));
  }
}

}  // namespace
}  // namespace coppice
