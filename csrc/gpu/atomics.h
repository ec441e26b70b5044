// A part of runtime.h for kernels of CUDA builds alone: words that several threads change, and words that the
// host changes while a kernel runs.
//
//   fetch_add(word, value)  compare_and_swap(word, expected, value)
//       In device memory, among all threads of the device; what the word held before.
//   load_shared_word(word)  store_shared_word(word, value)
//       What other threads stored a moment ago; a value that they will load. No cache of the thread's own.
//   fence_device()
//       Writes before it are seen by every thread of the device that sees a write after it.
//   fence_host()
//       The same for the host, and for writes to its memory.
//   sync_block()
//       All threads of a block.
//   load_acquire_host(word)
//       A word in pinned memory. What the host wrote before it stored the value seen, load_fresh() sees
//       after.
//   store_to_host(word, value)
//   load_fresh<T>(from)
//       Bytes16, Bytes8, uint32_t, uint16_t or uint8_t of memory that changes while the kernel runs.
//   nanoseconds()  pause_briefly()
//       A clock, and a fraction of a microsecond in which others run.
#pragma once

#include "gpu/runtime.h"

#if defined(NGRAM_PLE_EMULATOR)
#include "gpu/atomics_emulator.h"
#else
#include "gpu/atomics_cuda.h"
#endif
