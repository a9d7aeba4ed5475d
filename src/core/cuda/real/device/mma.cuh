#pragma once
// Tensor cores: a warp multiplies small bf16 matrices into f32 sums, and loads them from shared
// memory as the multiplication wants them. All 32 lanes must arrive, at the same line.
#include "device/launch.cuh"

namespace coppice::device {

/// D += A B with D 16x8 f32, A 16x16, B 16x8 bf16, spread over the warp. With g = lane / 4 and
/// q = 2 (lane % 4), a lane holds
///   d[0..3]  D[g][q], D[g][q+1], D[g+8][q], D[g+8][q+1]
///   a[0..3]  the pairs A[g][q..], A[g+8][q..], A[g][q+8..], A[g+8][q+8..]
///   b[0..1]  the pairs B[q..][g], B[q+8..][g]
__device__ __forceinline__ void mma_m16n8k16_bf16(float* d, const std::uint32_t* a,
                                                  const std::uint32_t* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Four 8x8 matrices of 16-bit elements. Lane 8 m + r points to the 16 bytes (aligned to 16) of
/// matrix m's row r; a lane gets in out[m] the pair [g][q], [g][q+1] of matrix m.
__device__ __forceinline__ void load_matrix_x4(std::uint32_t* out, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}

/// The same, transposed: out[m] is the pair [q][g], [q+1][g].
__device__ __forceinline__ void load_matrix_x4_transposed(std::uint32_t* out, const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}

}  // namespace coppice::device
