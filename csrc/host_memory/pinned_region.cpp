#include "host_memory/pinned_region.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "host_memory/limits.h"

namespace ngram_ple {
namespace {

constexpr size_t kMostProbeBytes = size_t{256} << 20;

size_t whole_pages(size_t piece_bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (piece_bytes < page) {
    throw PinnedMemoryError("piece_bytes must be at least a page of " + std::to_string(page) +
                            " bytes, got " + std::to_string(piece_bytes));
  }
  return piece_bytes / page * page;
}

}  // namespace

PinnedRegion::PinnedRegion(size_t bytes, std::unique_ptr<Registrar> registrar, const RegionOptions& options)
    : bytes_(bytes), registrar_(std::move(registrar)), owner_(getpid()) {
  if (bytes == 0) throw PinnedMemoryError("nbytes must be > 0, got 0");
  if (options.threads < 0) {
    throw PinnedMemoryError("threads must be >= 0, got " + std::to_string(options.threads));
  }
  const size_t piece_bytes = whole_pages(options.piece_bytes);
  if (options.check_room) {
    MemoryLimits limits = read_memory_limits();
    if (options.present) limits.available = limits.group_room = kUnlimited;
    check_room(bytes, limits);
    check_lock_limit(limits.locked_memory);
  }
  mapping_ = std::make_unique<Mapping>(bytes, options.file, options.inherited);
  if (!options.present) mapping_->prefer_node(registrar_->memory_node());
  mapping_->touch(options.threads > 0 ? options.threads : usable_cpus());
  lock_pieces(piece_bytes);
}

PinnedRegion::~PinnedRegion() { close(); }

// Most drivers do not count what they lock against RLIMIT_MEMLOCK. Whether this one does is tried with a
// little more than the limit, where that is little.
void PinnedRegion::check_lock_limit(size_t limit) {
  if (bytes_ <= limit || limit >= kMostProbeBytes) return;
  const Mapping probe(limit + 1);
  try {
    registrar_->lock(probe.address(), probe.bytes());
  } catch (const std::runtime_error& error) {
    throw PinnedMemoryError("pinned memory of " + bytes_text(bytes_) +
                            " does not fit: the lock limit (RLIMIT_MEMLOCK, ulimit -l) is " +
                            bytes_text(limit) + " and the driver locked no more (" + error.what() + ")");
  }
  registrar_->unlock(probe.address());
}

void PinnedRegion::lock_pieces(size_t piece_bytes) {
  char* const begin = mapping_->address();
  const size_t total = mapping_->bytes(), count = (total + piece_bytes - 1) / piece_bytes;
  pieces_.reserve(count);
  for (size_t piece = 0; piece < count; ++piece) {
    const size_t at = piece * piece_bytes, length = std::min(piece_bytes, total - at);
    try {
      registrar_->lock(begin + at, length);
    } catch (const std::runtime_error& error) {
      unlock_pieces();
      throw PinnedMemoryError("registering pinned memory of " + bytes_text(bytes_) + " failed at piece " +
                              std::to_string(piece + 1) + " of " + std::to_string(count) + " (" +
                              bytes_text(length) + "): " + error.what() + "; RLIMIT_MEMLOCK is " +
                              bytes_text(read_memory_limits().locked_memory));
    }
    pieces_.push_back(begin + at);
  }
}

void PinnedRegion::unlock_pieces() noexcept {
  for (; !pieces_.empty(); pieces_.pop_back()) registrar_->unlock(pieces_.back());
}

void PinnedRegion::close() noexcept {
  if (mapping_ == nullptr) return;
  if (getpid() != owner_) {
    (void)mapping_.release();  // other memory may lie at these addresses by now
    (void)registrar_.release();
    return;
  }
  registrar_->wait();
  unlock_pieces();
  mapping_.reset();
}

}  // namespace ngram_ple
