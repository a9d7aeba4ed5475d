// A matrix product that fails, for one rank of a job: loaded before oneDNN, it takes the place of
// its dnnl_sgemm, as if that had run out of memory on this rank alone.
#include <dnnl.h>

extern "C" dnnl_status_t DNNL_API dnnl_sgemm(char, char, dnnl_dim_t, dnnl_dim_t, dnnl_dim_t, float,
                                             const float*, dnnl_dim_t, const float*, dnnl_dim_t,
                                             float, float*, dnnl_dim_t) {
  return dnnl_out_of_memory;
}
