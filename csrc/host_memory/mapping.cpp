#include "host_memory/mapping.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "host_memory/limits.h"
#include "host_memory/registrar.h"
#include "host_memory/system_files.h"

namespace ngram_ple {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kTouchBytes = size_t{64} << 20;  // what a thread takes at a time
constexpr int kPopulateWrite = 23;                // MADV_POPULATE_WRITE of Linux 5.14
constexpr int kPreferred = 1;                     // MPOL_PREFERRED

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// What kernels before Linux 5.14 know: a file's pages, which may hold rows, are only read.
int touch_one_by_one(char* begin, size_t bytes, int file, size_t offset) {
  volatile char* const pages = begin;
  const size_t page = page_bytes();
  if (file < 0) {
    for (size_t at = 0; at < bytes; at += page) pages[at] = 0;
    return 0;
  }
  // Room is refused here; touching a page that cannot be had would end the process.
  while (fallocate(file, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
    if (errno == EOPNOTSUPP || errno == ENOSYS) break;
    if (errno != EINTR) return errno;
  }
  for (size_t at = 0; at < bytes; at += page) (void)pages[at];
  return 0;
}

// Returns 0 or an errno. Populating reports a shortage where a plain write would end the process.
int touch_pages(char* begin, size_t bytes, int file, size_t offset) {
  while (madvise(begin, bytes, kPopulateWrite) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    return errno == EINVAL ? touch_one_by_one(begin, bytes, file, offset) : errno;
  }
  return 0;
}

// "0" on a machine with one node, "0-1" or "0,2" on others.
bool has_several_nodes() {
  return first_line("/sys/devices/system/node/online").find_first_of("-,") != std::string::npos;
}

}  // namespace

Mapping::Mapping(size_t bytes, int file, bool inherited) : file_(file) {
  const size_t page = page_bytes();
  bytes_ = (bytes + page - 1) / page * page;
  const size_t slack = kHugePage - page;
  void* mapped = mmap(nullptr, bytes_ + slack, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) {
    throw PinnedMemoryError("pinned memory of " + bytes_text(bytes) +
                            " could not be mapped: " + std::strerror(errno));
  }
  char* const begin = static_cast<char*>(mapped);
  const uintptr_t at = reinterpret_cast<uintptr_t>(begin);
  const size_t before = (at + kHugePage - 1) / kHugePage * kHugePage - at;
  address_ = begin + before;
  if (before > 0) munmap(begin, before);
  if (slack > before) munmap(address_ + bytes_, slack - before);
  if (file >= 0) map_file(bytes);
  madvise(address_, bytes_, MADV_HUGEPAGE);  // a hint: huge_bytes() tells what came of it
  if (!inherited && madvise(address_, bytes_, MADV_DONTFORK) != 0) {
    const int error = errno;
    unmap();
    throw PinnedMemoryError(std::string("pinned memory could not be kept from forked children: ") +
                            std::strerror(error));
  }
}

// In place of the anonymous pages, which found the address.
void Mapping::map_file(size_t bytes) {
  struct stat status{};
  std::string why;
  if (fstat(file_, &status) != 0) {
    why = std::strerror(errno);
  } else if (static_cast<uint64_t>(status.st_size) < bytes_) {  // pages past its end would end the process
    why = "the file has " + bytes_text(static_cast<uint64_t>(status.st_size));
  } else if (mmap(address_, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_, 0) == MAP_FAILED) {
    why = std::strerror(errno);
  }
  if (why.empty()) return;
  unmap();
  throw PinnedMemoryError("shared memory of " + bytes_text(bytes) + " could not be mapped: " + why);
}

Mapping::~Mapping() { unmap(); }

void Mapping::unmap() noexcept {
  if (address_ != nullptr) munmap(address_, bytes_);
  address_ = nullptr;
}

void Mapping::prefer_node(int node) const {
  constexpr int kWordBits = 8 * sizeof(unsigned long);
  if (node < 0 || node >= 1024 || !has_several_nodes()) return;
  unsigned long mask[1024 / kWordBits] = {};
  mask[node / kWordBits] = 1UL << (node % kWordBits);
  // Refused in some containers: a slower table then, not an error.
  syscall(SYS_mbind, address_, bytes_, kPreferred, mask, 1024UL, 0U);
}

void Mapping::touch(int threads) const {
  std::atomic<size_t> next{0};
  std::atomic<int> failed{0};
  const auto work = [&] {
    while (failed.load() == 0) {
      const size_t at = next.fetch_add(kTouchBytes);
      if (at >= bytes_) return;
      const int error = touch_pages(address_ + at, std::min(kTouchBytes, bytes_ - at), file_, at);
      if (error != 0) failed = error;
    }
  };
  const size_t useful = (bytes_ + kTouchBytes - 1) / kTouchBytes;
  std::vector<std::thread> helpers;
  try {
    for (size_t i = 1; i < std::min<size_t>(static_cast<size_t>(threads), useful); ++i) {
      helpers.emplace_back(work);
    }
  } catch (const std::system_error&) {  // no more threads allowed: those at hand do it
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  if (failed != 0) {
    throw PinnedMemoryError("pinned memory of " + bytes_text(bytes_) +
                            " could not be had: " + std::strerror(failed) + ", MemAvailable is " +
                            bytes_text(read_memory_limits().available));
  }
}

size_t Mapping::huge_bytes() const {
  const uintptr_t at = reinterpret_cast<uintptr_t>(address_);
  bool inside = false;
  uint64_t kib = 0;
  for_each_line("/proc/self/smaps", [&](const char* line) {
    uint64_t begin = 0, end = 0, part = 0;
    if (std::sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &begin, &end) == 2) {
      const bool left = inside;
      inside = begin <= at && at < end;
      return left && !inside;
    }
    if (inside && (std::sscanf(line, "AnonHugePages: %" SCNu64, &part) == 1 ||
                   std::sscanf(line, "ShmemPmdMapped: %" SCNu64, &part) == 1)) {
      kib += part;
    }
    return false;
  });
  return std::min<size_t>(kib * 1024, bytes_);  // a neighbour may share the entry
}

int usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace ngram_ple
