// Training steps on a device. (To come.)
#include "device/benches.hpp"

namespace coppice::bench {

void train_bench(const BenchOptions&, Report&) {}
void dualkv_bench(const BenchOptions&, Report&) {}

}  // namespace coppice::bench
