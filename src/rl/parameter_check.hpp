#pragma once
// Whether ranks still hold the same values where they must. Nothing repairs a difference: it comes
// from a broken machine, a broken sum or a bug, and every step after it is lost.
#include <span>

#include "core/exec_context.hpp"
#include "parallel/parameter.hpp"
#include "parallel/process_grid.hpp"

namespace coppice {

/// Compares 64-bit hashes of the values of every part: over the replicas all of them, over the
/// tensor ranks those that each holds whole, over the ranks of a shared key-value head that head.
///
/// Parallel  collective over the grid
/// Effects   reads values only
/// Errors    Error on all ranks alike, naming one parameter and the ranks that differ
/// Oracle    tests/ranks/parameter_check_test.cpp
void check_identical_parameters(ExecContext& ctx, ProcessGrid& grid,
                                std::span<Parameter* const> parameters);

}  // namespace coppice
