// How much memory the process may still take, as the system tells it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ngram_ple {

inline constexpr uint64_t kUnlimited = UINT64_MAX;

// Bytes; kUnlimited where nothing bounds them.
struct MemoryLimits {
  uint64_t available = kUnlimited;      // MemAvailable of /proc/meminfo
  uint64_t group_room = kUnlimited;     // what the control groups leave, file cache counted as free
  uint64_t address_space = kUnlimited;  // RLIMIT_AS
  uint64_t address_space_used = 0;      // of it
  uint64_t locked_memory = kUnlimited;  // RLIMIT_MEMLOCK
};

MemoryLimits read_memory_limits();

// Throws PinnedMemoryError that names the limit and its numbers unless so many bytes more fit. Says nothing
// of locked memory: whether a driver counts it has to be tried.
void check_room(size_t bytes, const MemoryLimits& limits);

// Such as "51200000000 bytes (47.68 GiB)".
std::string bytes_text(uint64_t bytes);

}  // namespace ngram_ple
