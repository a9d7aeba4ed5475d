#pragma once
// The MPI session of a test program that runs on several ranks.
#include "parallel/mpi/mpi_session.hpp"

namespace coppice::test {

MpiSession& ranks_session();

}  // namespace coppice::test
