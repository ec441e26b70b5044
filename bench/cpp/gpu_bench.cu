// Times the GPU kernels alone, on the published model's shape: 16 heads of 160 values, 320 001 536 rows,
// fresh random tokens for every launch. Prints µs of a launch between two events and in a replayed graph,
// beside the floor: bytes read once and written once at the copy rate of the same run.
//
//   gpu_bench [fewer]     "fewer" leaves out fp16, fp32 and fp8-rowwise

#include <cstring>

#include "gpu/launch.h"
#include "gpu_timing.cuh"

namespace {

using namespace ngram_ple;
using namespace ngram_ple::bench;

constexpr int64_t kRows = 320'001'536;
constexpr int64_t kTokens[] = {1, 8, 64, 256, 1024, 8192, 32768};

void report(const char* op, const char* format, int64_t tokens, double bytes, double rate, double alone,
            double replayed) {
  const double floor = bytes / rate;
  std::printf(
      "%-9s %-11s %6lld  launch %7.2f us (%5.2f x floor)   graph %7.2f us (%5.2f x floor)   floor %6.2f us\n",
      op, format, static_cast<long long>(tokens), alone, alone / floor, replayed, replayed / floor, floor);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const bool fewer = argc > 1 && std::strcmp(argv[1], "fewer") == 0;
  const size_t table_bytes = static_cast<size_t>(kRows) * 2 * kHeadDim;
  uint8_t* memory = device_array<uint8_t>(table_bytes);
  fill_random<<<4096, 256>>>(reinterpret_cast<uint64_t*>(memory), static_cast<int64_t>(table_bytes / 8), 7,
                             0);
  const float* global_scale = device_copy(std::vector<float>{0.013f});
  const size_t out_bytes = size_t{32768} * kHeads * kHeadDim * 4;
  uint8_t* out = device_array<uint8_t>(out_bytes);
  Timer timer;
  const double rate = timer.copy_rate(memory, size_t{4} << 30);
  std::printf("copy rate %.0f GB/s, table %.1f GiB\n", rate / 1e3,
              static_cast<double>(table_bytes) / (1 << 30));

  std::vector<Format> formats{Format::bf16, Format::fp8, Format::nvfp4};
  if (!fewer) formats.insert(formats.end(), {Format::fp8_rowwise, Format::fp16});
  for (int64_t tokens : kTokens) {
    const int64_t rows = tokens * kHeads;
    Inputs inputs(tokens, tokens <= 1024 ? 64 : 8);
    int64_t* ids = device_array<int64_t>(static_cast<size_t>(rows * inputs.sets()));
    const int repeats = tokens <= 1024 ? 15 : 21;
    const auto hash = [&](int i) {
      gpu::ngram_ids(inputs[i], ids + rows * (i % inputs.sets()), timer.stream());
    };
    report("ngram_ids", "-", tokens, static_cast<double>(tokens) * (8 + 8 * kHeads), rate,
           timer.launches(inputs, repeats, hash), timer.replays(inputs, repeats, hash));
    for (Format format : formats) {
      const TableView table = table_in(memory, global_scale, format, kRows);
      const double bytes =
          static_cast<double>(rows) * static_cast<double>(table.format.row_bytes + table.format.scale_bytes +
                                                          table.out_row_bytes(OutType::bf16));
      const char* name = kFormatNames[static_cast<int>(format)];
      // Sets share the output in turns, so that small batches do not find it in the cache.
      const auto out_of = [&](int i) {
        const int64_t size = rows * table.out_row_bytes(OutType::bf16);
        return out + size * (i % (static_cast<int64_t>(out_bytes) / size));
      };
      const auto embed = [&](int i) {
        gpu::embed(inputs[i], table, OutType::bf16, out_of(i), timer.stream());
      };
      report("embed", name, tokens, bytes, rate, timer.launches(inputs, repeats, embed),
             timer.replays(inputs, repeats, embed));
      for (int i = 0; i < inputs.sets(); ++i) hash(i);
      const auto lookup = [&](int i) {
        const IntArray list{ids + rows * (i % inputs.sets()), true};
        gpu::lookup(list, rows, table, OutType::bf16, out_of(i), timer.stream());
      };
      // Rows stay the same from replay to replay here: only large batches are sure to find none of them
      // cached.
      report("lookup", name, tokens, bytes, rate, timer.launches(inputs, repeats, lookup),
             timer.replays(inputs, repeats, lookup));
    }
    check(cudaFree(ids));
  }
  check(cudaDeviceSynchronize());
  return 0;
}
