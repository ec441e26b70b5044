#include "emulator/simt.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "emulator/fiber.h"

namespace ngram_ple::simt {
namespace {

enum class State { ready, in_shuffle, in_ballot, in_wave_barrier, in_barrier, done };

struct Thread {
  std::unique_ptr<Fiber> fiber;
  State state = State::done;
  uint64_t given = 0;  // to the collective call
  uint32_t from_lane = 0;
  uint64_t received = 0;
};

// The one machine: kernels are launched from one thread.
struct Machine {
  uint32_t wave = 32;
  bool bulk_copy = true;
  std::unique_ptr<uint8_t[]> shared;
  std::mt19937_64 random;
  std::vector<Thread> threads;
  const std::function<void()>* kernel = nullptr;
  uint32_t block_threads = 0, block = 0, blocks = 0, current = 0;
} machine;

void thread_main() {
  for (;;) {
    (*machine.kernel)();
    machine.threads[machine.current].state = State::done;
    Fiber::leave();
  }
}

uint64_t wait_in(State state, uint64_t given, uint32_t from_lane) {
  Thread& self = machine.threads[machine.current];
  self.state = state;
  self.given = given;
  self.from_lane = from_lane;
  Fiber::leave();
  return self.received;
}

// Lets the lanes of a wave go on when all of them stand in the same collective call.
bool release_wave(Thread* lanes) {
  const State state = lanes[0].state;
  if (state != State::in_shuffle && state != State::in_ballot && state != State::in_wave_barrier)
    return false;
  uint64_t ballot = 0;
  for (uint32_t lane = 0; lane < machine.wave; ++lane) {
    if (lanes[lane].state != state) return false;
    ballot |= (lanes[lane].given & 1) << lane;
  }
  for (uint32_t lane = 0; lane < machine.wave; ++lane) {
    lanes[lane].received = state == State::in_ballot ? ballot : lanes[lanes[lane].from_lane].given;
  }
  for (uint32_t lane = 0; lane < machine.wave; ++lane) lanes[lane].state = State::ready;
  return true;
}

bool all_threads_are(State state) {
  return std::all_of(machine.threads.begin(), machine.threads.begin() + machine.block_threads,
                     [&](const Thread& thread) { return thread.state == state; });
}

void run_block() {
  std::vector<uint32_t> order(machine.block_threads);
  for (uint32_t i = 0; i < machine.block_threads; ++i) {
    order[i] = i;
    machine.threads[i].state = State::ready;
  }
  while (!all_threads_are(State::done)) {
    bool progress = false;
    std::shuffle(order.begin(), order.end(), machine.random);
    for (uint32_t i : order) {
      if (machine.threads[i].state != State::ready) continue;
      machine.current = i;
      machine.threads[i].fiber->enter();
      progress = true;
    }
    for (uint32_t first = 0; first < machine.block_threads; first += machine.wave) {
      // Half of the waves wait a round, so that waves drift apart as they do on a GPU.
      if (progress && machine.random() % 2 == 0) continue;
      progress |= release_wave(&machine.threads[first]);
    }
    if (all_threads_are(State::in_barrier)) {
      for (uint32_t i : order) machine.threads[i].state = State::ready;
      progress = true;
    }
    if (!progress)
      fail("threads wait for each other in different collective calls, or after others have ended");
  }
}

}  // namespace

void set_wave_size(uint32_t lanes) { machine.wave = lanes; }
void set_order(uint64_t seed) { machine.random.seed(seed); }
void set_bulk_copy(bool has) { machine.bulk_copy = has; }

void run(int64_t blocks, int threads, uint32_t shared_bytes, const std::function<void()>& kernel) {
  machine.kernel = &kernel;
  machine.block_threads = static_cast<uint32_t>(threads);
  machine.blocks = static_cast<uint32_t>(blocks);
  if (machine.block_threads % machine.wave != 0) fail("the block's threads do not fill its waves");
  while (machine.threads.size() < machine.block_threads) {
    machine.threads.push_back({std::make_unique<Fiber>(thread_main)});
  }
  for (machine.block = 0; machine.block < machine.blocks; ++machine.block) {
    machine.shared.reset(new uint8_t[shared_bytes]);
    std::memset(machine.shared.get(), 0xA5, shared_bytes);  // nothing is left from the block before
    run_block();
  }
}

uint32_t wave_size() { return machine.wave; }
uint32_t thread_index() { return machine.current; }
uint32_t block_threads() { return machine.block_threads; }
uint32_t block_index() { return machine.block; }
uint32_t grid_blocks() { return machine.blocks; }

uint32_t shuffle(uint32_t value, uint32_t from_lane) {
  if (from_lane >= machine.wave) fail("a shuffle reads from a lane that does not exist");
  return static_cast<uint32_t>(wait_in(State::in_shuffle, value, from_lane));
}
uint64_t ballot(bool yes) { return wait_in(State::in_ballot, yes ? 1 : 0, 0); }
void sync_wave() { wait_in(State::in_wave_barrier, 0, 0); }
void sync_block() { wait_in(State::in_barrier, 0, 0); }

uint8_t* shared_memory() { return machine.shared.get(); }
bool has_bulk_copy() { return machine.bulk_copy; }
void bulk_copy(uint8_t* to, const uint8_t* from, uint32_t bytes) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0 ||
      bytes % 16 != 0) {
    fail("a bulk copy is not of 16-byte units");
  }
  std::memcpy(to, from, bytes);
}

void fail(const char* sentence) {
  std::fprintf(stderr, "SIMT emulator: %s (block %u, thread %u).\n", sentence, machine.block,
               machine.current);
  std::abort();
}

}  // namespace ngram_ple::simt
