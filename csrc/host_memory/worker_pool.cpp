#include "host_memory/worker_pool.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

namespace ngram_ple {
namespace {

constexpr uint64_t kOpen = uint64_t{1} << 31, kInside = kOpen - 1;

uint64_t generation_of(uint64_t gate) { return gate >> 32; }

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

WorkerPool::WorkerPool(int threads, Work& work, std::chrono::microseconds looking)
    : work_(work),
      count_(threads),
      looking_(looking),
      workers_(std::make_unique<Workers>()),
      owner_(getpid()) {
  const SignalsBlocked blocked;
  work.note_awake(threads);
  workers_->threads.reserve(static_cast<size_t>(threads));
  try {
    for (int i = 0; i < threads; ++i) workers_->threads.emplace_back([this] { serve(); });
  } catch (...) {
    stop();
    throw;
  }
}

WorkerPool::~WorkerPool() {
  if (getpid() != owner_) {
    (void)workers_.release();
    return;
  }
  stop();
}

void WorkerPool::stop() noexcept {
  {
    const std::lock_guard<std::mutex> lock(workers_->mutex);
    stopping_ = true;
  }
  workers_->opened.notify_all();
  for (std::thread& thread : workers_->threads) thread.join();
  workers_->threads.clear();
}

void WorkerPool::close() noexcept {
  gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
  while ((gate_.load(std::memory_order_acquire) & kInside) != 0) pause_briefly();
}

void WorkerPool::open(bool wake) noexcept {
  const uint64_t next = generation_of(gate_.load(std::memory_order_relaxed)) + 1;
  gate_.store((next << 32) | kOpen, std::memory_order_release);
  if (!wake) return;
  {
    const std::lock_guard<std::mutex> lock(
        workers_->mutex);  // who is about to sleep has seen the gate, or sleeps
    wake = workers_->sleepers > 0;
  }
  if (wake) workers_->opened.notify_all();
}

bool WorkerPool::enter(uint64_t& seen) noexcept {
  uint64_t gate = gate_.load(std::memory_order_acquire);
  while ((gate & kOpen) != 0 && generation_of(gate) != seen) {
    if (!gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) continue;
    seen = generation_of(gate);
    return true;
  }
  seen = generation_of(gate);
  return false;
}

bool WorkerPool::changed_from(uint64_t generation) const noexcept {
  return stopping_.load(std::memory_order_relaxed) ||
         generation_of(gate_.load(std::memory_order_relaxed)) != generation;
}

void WorkerPool::wait_for_other_than(uint64_t generation) noexcept {
  const auto end = std::chrono::steady_clock::now() + looking_;
  do {
    for (int i = 0; i < 32; ++i) {
      if (changed_from(generation)) return;
      if (work_.is_called()) work_.begin();
      pause_briefly();
    }
  } while (std::chrono::steady_clock::now() < end);
  std::unique_lock<std::mutex> lock(workers_->mutex);
  work_.note_awake(count_ - ++workers_->sleepers);
  workers_->opened.wait(lock, [&] { return changed_from(generation); });
  work_.note_awake(count_ - --workers_->sleepers);
}

void WorkerPool::serve() noexcept {
  uint64_t seen = 0;
  for (;;) {
    wait_for_other_than(seen);
    if (stopping_.load(std::memory_order_relaxed)) return;
    if (!enter(seen)) continue;
    work_.run();
    gate_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace ngram_ple
