// The main of tests that run on several ranks. A rank that fails must not strand its peers: the
// first failed assertion ends the whole job, with the rank named.
#include <gtest/gtest.h>

#include <cstdio>
#include <exception>
#include <string_view>

#include "ranks/ranks_session.hpp"

namespace coppice::test {
namespace {

MpiSession* session = nullptr;

class AbortOnFailure : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    std::fprintf(stderr, "rank %d on %s: %s:%d: %s\n", session->rank(), session->host().c_str(),
                 result.file_name() == nullptr ? "?" : result.file_name(), result.line_number(),
                 result.summary());
    session->abort(1);
  }
};

}  // namespace

MpiSession& ranks_session() { return *session; }

}  // namespace coppice::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  // Listing the cases needs no ranks.
  if (testing::GTEST_FLAG(list_tests)) return RUN_ALL_TESTS();
  try {
    coppice::MpiSession session;
    coppice::test::session = &session;
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    if (session.rank() != 0) delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new coppice::test::AbortOnFailure);
    return RUN_ALL_TESTS();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
