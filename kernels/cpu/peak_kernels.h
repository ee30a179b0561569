// Inside of peak.cpp: loops of one instruction path. Each returns a value that depends on all its work.
#pragma once
#include <cstdint>

namespace carrel::cpu {

constexpr int kPeakChains = 12;  // independent accumulators: enough to hide the latency of either path

/// Adds int8 dots: per round and chain 64 (AVX2) or 128 (AVX-512) operations.
int peak_int8_avx2(int64_t n_rounds);
int peak_int8_avx512(int64_t n_rounds);
/// fma: per round and chain 16 or 32 operations.
float peak_f32_avx2(int64_t n_rounds);
float peak_f32_avx512(int64_t n_rounds);
/// xor of all bytes, in lines of 64.
int read_lines(const void* p, int64_t n_lines);

}  // namespace carrel::cpu
