#include "emulator/fiber.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

namespace ngram_ple::simt {
namespace {

constexpr size_t kStackBytes = 256 * 1024;  // the sanitizers' frames are large
thread_local Fiber* running = nullptr;

}  // namespace

Fiber::Fiber(void (*entry)()) : entry_(entry), stack_(kStackBytes) {
  getcontext(&own_);
  own_.uc_stack.ss_sp = stack_.data();
  own_.uc_stack.ss_size = stack_.size();
  own_.uc_link = nullptr;
  makecontext(&own_, &Fiber::start, 0);
}

void Fiber::start() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &running->scheduler_stack_, &running->scheduler_stack_size_);
#endif
  running->entry_();
}

void Fiber::enter() {
  running = this;
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(&fake_stack, stack_.data(), stack_.size());
#endif
  swapcontext(&scheduler_, &own_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  running = nullptr;
}

void Fiber::leave() {
  Fiber* self = running;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&self->own_fake_stack_, self->scheduler_stack_, self->scheduler_stack_size_);
#endif
  swapcontext(&self->own_, &self->scheduler_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(self->own_fake_stack_, &self->scheduler_stack_,
                                  &self->scheduler_stack_size_);
#endif
}

}  // namespace ngram_ple::simt
