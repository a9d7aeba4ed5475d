#pragma once
// The one loop over threads. It hides OpenMP, carries exceptions out of it, and makes sure that a
// matrix multiplication called inside a body stays in its thread, also when there is only one.
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <exception>

#include "core/exec_context.hpp"

namespace coppice {

/// Runs body(i) for i in [0, count); bodies are handed out in order to whichever thread is free.
/// Bodies must not depend on each other.
///
/// Errors    the first exception thrown by a body, after all bodies that had started are done
template <class Body>
void parallel_for(const ExecContext& ctx, std::int64_t count, const Body& body) {
  if (count <= 0) return;
  std::exception_ptr error;
  const int threads = static_cast<int>(std::min<std::int64_t>(ctx.threads, count));
#pragma omp parallel num_threads(threads)
  {
    // Libraries ask OpenMP how many threads they may use; a region of one thread would otherwise
    // let them start more. The setting ends with the region.
    omp_set_num_threads(1);
#pragma omp for schedule(dynamic, 1)
    for (std::int64_t i = 0; i < count; ++i) {
      try {
        body(i);
      } catch (...) {
#pragma omp critical(coppice_parallel_for_error)
        if (!error) error = std::current_exception();
      }
    }
  }
  if (error) std::rethrow_exception(error);
}

/// Inside a body: which of the loop's threads runs it, from 0 to ctx.threads - 1. It may choose a
/// thread's own scratch; results must not depend on it.
inline int thread_index() { return omp_get_thread_num(); }

/// Runs body(begin, end) over [0, count) cut into one run per thread, none shorter than `grain`.
template <class Body>
void parallel_for_ranges(const ExecContext& ctx, std::int64_t count, std::int64_t grain,
                         const Body& body) {
  const auto most = std::max<std::int64_t>(1, count / std::max<std::int64_t>(1, grain));
  const auto pieces = std::min<std::int64_t>(ctx.threads, most);
  parallel_for(ctx, count > 0 ? pieces : 0, [&](std::int64_t piece) {
    body(count * piece / pieces, count * (piece + 1) / pieces);
  });
}

}  // namespace coppice
