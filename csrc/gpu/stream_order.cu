#include "gpu/host_runtime.h"
#include "gpu/stream_order.h"
#if defined(NGRAM_PLE_EMULATOR)
#include <cstring>
#endif

namespace ngram_ple::gpu {

#if defined(NGRAM_PLE_EMULATOR)
// A launch returns when its kernel has ended.
void copy_to_device(Stream, uint8_t* to, const uint8_t* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}
Handover::Handover() = default;
Handover::~Handover() = default;
void Handover::pass(Stream, Stream) {}
HostBranch::HostBranch() = default;
HostBranch::~HostBranch() = default;
void HostBranch::fork(Stream) {}
void HostBranch::call(void (*function)(void*), void* data) { function(data); }
void HostBranch::join(Stream) {}
LastUse::LastUse() = default;
LastUse::~LastUse() = default;
void LastUse::wait_on(Stream, uint64_t) {}
void LastUse::record(Stream, uint64_t) {}
#else
namespace {

NGP_VENDOR(Stream_t) native(Stream stream) { return static_cast<NGP_VENDOR(Stream_t)>(stream); }
NGP_VENDOR(Event_t) native_event(void* event) { return static_cast<NGP_VENDOR(Event_t)>(event); }

void* new_event() {
  NGP_VENDOR(Event_t) event = nullptr;
  NGP_CALL(EventCreateWithFlags, &event, NGP_VENDOR(EventDisableTiming));
  return event;
}
void end_event(void* event) { (void)NGP_VENDOR(EventDestroy)(native_event(event)); }

void record(void* event, Stream stream) { NGP_CALL(EventRecord, native_event(event), native(stream)); }
void wait(Stream stream, void* event) { NGP_CALL(StreamWaitEvent, native(stream), native_event(event), 0); }

}  // namespace

void copy_to_device(Stream stream, uint8_t* to, const uint8_t* from, int64_t bytes) {
  NGP_CALL(MemcpyAsync, to, from, static_cast<size_t>(bytes), NGP_VENDOR(MemcpyHostToDevice), native(stream));
}

Handover::Handover() : event_(new_event()) {}
Handover::~Handover() { end_event(event_); }
void Handover::pass(Stream from, Stream to) {
  if (from == to) return;
  record(event_, from);
  wait(to, event_);
}

HostBranch::HostBranch() : fork_(new_event()), joined_(new_event()) {
  NGP_VENDOR(Stream_t) side = nullptr;
  NGP_CALL(StreamCreateWithFlags, &side, NGP_VENDOR(StreamNonBlocking));
  side_ = side;
}

HostBranch::~HostBranch() {
  (void)NGP_VENDOR(StreamDestroy)(native(side_));
  end_event(fork_);
  end_event(joined_);
}

void HostBranch::fork(Stream stream) {
  record(fork_, stream);
  wait(side_, fork_);
}

void HostBranch::call(void (*function)(void*), void* data) {
  NGP_CALL(LaunchHostFunc, native(side_), function, data);
}

void HostBranch::join(Stream stream) {
  record(joined_, side_);
  wait(stream, joined_);
}

LastUse::LastUse() : event_(new_event()) {}
LastUse::~LastUse() { end_event(event_); }

void LastUse::wait_on(Stream stream, uint64_t capture) {
  if (recorded_ && capture_ == capture) wait(stream, event_);
}

void LastUse::record(Stream stream, uint64_t capture) {
  ngram_ple::gpu::record(event_, stream);
  capture_ = capture;
  recorded_ = true;
}
#endif

}  // namespace ngram_ple::gpu
