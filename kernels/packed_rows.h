// DeepSeek-V4's cache rows as published (architectures reference 2.3, 2.12; docs/formats/kv_packed.md): a row of d dimensions as e4m3 in
// groups of 64 and its last 64 as bfloat16; an indexer row as e2m1 in groups of 32, turned by a Hadamard matrix before.
//
// Writing rounds; reading is exact. The vector sets use these functions on every instruction path; the reference set has its own
// (cpu/reference_packed.cpp). Threads: pure functions.
#pragma once
#include <cstddef>

#include "kernels/dtype.h"

namespace carrel {

constexpr int kPackedRotary = 64;       // last dimensions of a row, kept as bfloat16
constexpr int kPackedGroup = 64;        // dimensions that share an e8m0 scale
constexpr int kPackedIndexGroup = 32;   // the same of an indexer row
constexpr int kMostPackedIndex = 1024;  // dimensions of an indexer row
constexpr float kPackedFloor = 1e-4f;   // of a group's largest magnitude, before its scale is chosen
constexpr float kIndexFloor = 6 * 0x1p-126f;

inline bool is_packed(DType type) {
  return type == DType::kPackedKv || type == DType::kPackedIndex;
}
/// Whether rows of n elements can be stored so: kPackedKv a multiple of 64 and at least 128; kPackedIndex a power of two from 32 to
/// kMostPackedIndex.
bool packed_fits(DType type, int n);

/// Where the parts of a kPackedKv row of n elements begin: codes at 0.
struct PackedKvParts {
  int n_codes, rotary_at, scales_at;
  size_t n_bytes;
};
constexpr PackedKvParts packed_kv_parts(int n) {
  const int n_codes = n - kPackedRotary, rotary_at = n_codes, scales_at = rotary_at + 2 * kPackedRotary;
  return {n_codes, rotary_at, scales_at, static_cast<size_t>(scales_at + (n_codes / kPackedGroup + 7) / 8 * 8)};
}
/// Bytes of a stored row of n elements of any row type.
size_t row_bytes(DType type, int n);

/// x: n floats. A group that holds what is not finite reads back as NaN.
void pack_row(DType type, const float* x, int n, std::byte* row);
/// The floats that were stored, of any row type; of an indexer row the turned ones. out: n floats.
void unpack_row(DType type, const std::byte* row, int n, float* out);
/// What an indexer's query goes through to meet such rows: turned, and rounded as they are. In place.
void round_index_query(float* q, int n);
/// x = H x / sqrt(n), H in natural (Sylvester) order; in place, additions of float32 in the order of the butterflies.
void hadamard(float* x, int n);

}  // namespace carrel
