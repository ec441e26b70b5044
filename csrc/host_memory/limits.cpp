#include "host_memory/limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "host_memory/registrar.h"

namespace ngram_ple {
namespace {

uint64_t resource_limit(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return kUnlimited;
  return limit.rlim_cur == RLIM_INFINITY ? kUnlimited : static_cast<uint64_t>(limit.rlim_cur);
}

// The number after `key` in a file of "key number" lines.
uint64_t number_after(const std::string& path, const std::string& key, uint64_t otherwise) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    uint64_t number = 0;
    if (word == key && file >> number) return number;
  }
  return otherwise;
}

uint64_t number_in(const std::string& path, uint64_t otherwise) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? number : otherwise;  // "max" is no number
}

// Version 2 control groups: the process's own and every one above it.
uint64_t read_group_room() {
  std::ifstream file("/proc/self/cgroup");
  std::string group;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("0::", 0) == 0) group = line.substr(3);
  }
  uint64_t room = kUnlimited;
  while (true) {
    const std::string folder = "/sys/fs/cgroup" + group;
    const uint64_t most = number_in(folder + "/memory.max", kUnlimited);
    if (most != kUnlimited) {
      const uint64_t used = number_in(folder + "/memory.current", 0);
      const uint64_t cache = number_after(folder + "/memory.stat", "active_file", 0) +
                             number_after(folder + "/memory.stat", "inactive_file", 0);
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
  const uint64_t kib = number_after("/proc/meminfo", "MemAvailable:", kUnlimited);
  if (kib != kUnlimited) limits.available = kib * 1024;
  limits.group_room = read_group_room();
  limits.address_space = resource_limit(RLIMIT_AS);
  limits.address_space_used = number_in("/proc/self/statm", 0) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
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
