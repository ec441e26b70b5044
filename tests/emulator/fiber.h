// Fibers: functions that can be left in the middle and entered again. AddressSanitizer is told of every
// switch.
#pragma once

#include <ucontext.h>

#include <cstddef>
#include <vector>

namespace ngram_ple::simt {

class Fiber {
 public:
  // Runs `entry` on its own stack at the first enter(); entry must not return.
  explicit Fiber(void (*entry)());
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void enter();         // from the scheduler into this fiber, until it leaves
  static void leave();  // from the running fiber back to its scheduler

 private:
  static void start();

  void (*entry_)();
  std::vector<char> stack_;
  ucontext_t own_{}, scheduler_{};
  void* own_fake_stack_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_size_ = 0;
};

}  // namespace ngram_ple::simt
