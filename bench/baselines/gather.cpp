// The limit: nothing but row copies, each row's cache lines asked for a fixed distance ahead.
#include <cstdint>
#include <cstring>

extern "C" void plain_gather(const char* table, const int64_t* ids, int64_t count, int64_t row_bytes,
                             char* out, int threads) {
  constexpr int64_t kAhead = 32;
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int part = 0; part < threads; ++part) {
    const int64_t begin = count * part / threads, end = count * (part + 1) / threads;
    for (int64_t i = begin; i < end; ++i) {
      if (i + kAhead < end) {
        const char* next = table + ids[i + kAhead] * row_bytes;
        for (int64_t at = 0; at < row_bytes; at += 64) __builtin_prefetch(next + at);
      }
      std::memcpy(out + i * row_bytes, table + ids[i] * row_bytes, static_cast<size_t>(row_bytes));
    }
  }
}
