// Threads that run a piece of work together, started without an allocation or a wait for their wake-up.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace ngram_ple {

// What workers do.
class Work {
 public:
  virtual ~Work() = default;
  // Each worker calls it once for every open(), several at the same time; one that wakes up late perhaps when
  // everything is done.
  virtual void run() noexcept = 0;
  // Whether there is something to open, asked again and again by workers that wait and are still awake; the
  // one that hears of it first calls begin().
  virtual bool is_called() noexcept = 0;
  virtual void begin() noexcept = 0;
  // How many workers would hear of something to open; at first, and whenever that changes.
  virtual void note_awake(int workers) noexcept = 0;
};

class WorkerPool {
 public:
  // A woken thread starts tens of microseconds later; one that still looks starts at once.
  static constexpr std::chrono::microseconds kLooking{100};

  // Threads that block every signal, and look for work for the time of `looking` before they sleep. Throws
  // std::system_error when the system has none left.
  WorkerPool(int threads, Work& work, std::chrono::microseconds looking);
  // Waits for the workers. In a forked child, where there are none, it only forgets them.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Waits until no worker is inside run(); none enters before open().
  void close() noexcept;
  // Lets the workers in, those that sleep only if `wake`.
  void open(bool wake) noexcept;

 private:
  void serve() noexcept;
  void wait_for_other_than(uint64_t generation) noexcept;
  bool changed_from(uint64_t generation) const noexcept;
  bool enter(uint64_t& seen) noexcept;
  void stop() noexcept;

  // generation in the upper half, whether workers may enter, how many are inside
  std::atomic<uint64_t> gate_{0};
  std::atomic<bool> stopping_{false};
  Work& work_;
  const int count_;
  const std::chrono::microseconds looking_;
  // What a forked child must leave alone: to destroy a condition waits for the threads that sleep on it.
  struct Workers {
    std::mutex mutex;
    std::condition_variable opened;
    int sleepers = 0;
    std::vector<std::thread> threads;
  };
  std::unique_ptr<Workers> workers_;
  pid_t owner_;
};

}  // namespace ngram_ple
