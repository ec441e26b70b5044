#include "host_memory/limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "host_memory/registrar.h"
#include "host_memory/system_files.h"

namespace ngram_ple {
namespace {

uint64_t resource_limit(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return kUnlimited;
  return limit.rlim_cur == RLIM_INFINITY ? kUnlimited : static_cast<uint64_t>(limit.rlim_cur);
}

uint64_t bytes_or(std::optional<int64_t> number, uint64_t otherwise) {
  return number && *number >= 0 ? static_cast<uint64_t>(*number) : otherwise;
}

// Version 2 control groups: the process's own and every one above it.
uint64_t read_group_room() {
  std::string group;
  for_each_line("/proc/self/cgroup", [&](const char* line) {
    if (std::strncmp(line, "0::", 3) != 0) return false;
    group = std::string(line + 3, std::strcspn(line + 3, "\n"));
    return true;
  });
  uint64_t room = kUnlimited;
  while (true) {
    const std::string folder = "/sys/fs/cgroup" + group;
    const uint64_t most = bytes_or(leading_number(first_line(folder + "/memory.max")), kUnlimited);
    if (most != kUnlimited) {
      const uint64_t used = bytes_or(leading_number(first_line(folder + "/memory.current")), 0);
      const uint64_t cache = bytes_or(number_after(folder + "/memory.stat", "active_file"), 0) +
                             bytes_or(number_after(folder + "/memory.stat", "inactive_file"), 0);
      const uint64_t held = used - std::min(used, cache);
      room = std::min(room, most - std::min(most, held));
    }
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos) return room;
    group.resize(slash);
  }
}

[[noreturn]] void refuse(size_t bytes, const std::string& why) {
  throw PinnedMemoryError("pinned memory of " + bytes_text(bytes) + " does not fit: " + why +
                          "; NGRAM_PLE_MEMORY_CHECK=0 tries all the same");
}

}  // namespace

MemoryLimits read_memory_limits() {
  MemoryLimits limits;
  const uint64_t kib = bytes_or(number_after("/proc/meminfo", "MemAvailable:"), kUnlimited);
  if (kib != kUnlimited) limits.available = kib * 1024;
  limits.group_room = read_group_room();
  limits.address_space = resource_limit(RLIMIT_AS);
  limits.address_space_used = bytes_or(leading_number(first_line("/proc/self/statm")), 0) *
                              static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  limits.locked_memory = resource_limit(RLIMIT_MEMLOCK);
  return limits;
}

void check_room(size_t bytes, const MemoryLimits& limits) {
  if (bytes > limits.available) refuse(bytes, "MemAvailable is " + bytes_text(limits.available));
  if (bytes > limits.group_room) {
    refuse(bytes, "the memory limit of the control group leaves " + bytes_text(limits.group_room));
  }
  const uint64_t used = std::min(limits.address_space_used, limits.address_space);
  if (bytes > limits.address_space - used) {
    refuse(bytes, "the address space limit (RLIMIT_AS, ulimit -v) is " + bytes_text(limits.address_space) +
                      ", of which " + bytes_text(limits.address_space_used) + " are in use");
  }
}

std::string bytes_text(uint64_t bytes) {
  char text[64];
  std::snprintf(text, sizeof text, "%llu bytes (%.2f GiB)", static_cast<unsigned long long>(bytes),
                static_cast<double>(bytes) / (1 << 30));
  return text;
}

}  // namespace ngram_ple
