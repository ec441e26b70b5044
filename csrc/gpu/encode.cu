// Rows of numbers to stored rows. A thread takes eight values at a time; in nvfp4 two neighbours share a
// block, in fp8-rowwise a wave takes whole rows, kRows of them on their way at once. No value is read from
// memory twice but those of unaligned rows, byte by byte, and of rows longer than a wave takes.
#include "gpu/encode_values.cuh"
#include "gpu/gather_launch.cuh"

namespace ngram_ple::gpu {
namespace {

constexpr int kThreads = 256;
template <bool kWide>
constexpr int kRows = kWide ? 2 : 1;
constexpr int kRounds = 4;  // what a thread does before its first value pays for so many steps of its loop

NGP_DEVICE int64_t chunk_index() {
  return static_cast<int64_t>(block_index()) * block_threads() + thread_index();
}
NGP_DEVICE int64_t num_threads() { return static_cast<int64_t>(grid_blocks()) * block_threads(); }
NGP_DEVICE int values_of(int64_t chunk, int64_t total) {
  const int64_t left = total - chunk * kValues;
  return left < kValues ? static_cast<int>(left) : kValues;
}

NGP_DEVICE uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// The largest of all lanes' bits, in every lane.
NGP_DEVICE uint32_t largest_in_wave(uint32_t bits) {
  for (uint32_t step = wave_size() / 2; step > 0; step /= 2) {
    bits = larger(bits, shuffle(bits, lane_index() ^ step));
  }
  return bits;
}

// Chunks of rows; zeros for those that there are not.
template <bool kWide>
struct Rows {
  Format from;
  const uint8_t* values;
  int64_t num_rows, head_dim;

  NGP_DEVICE int64_t chunks() const { return (head_dim + kValues - 1) / kValues; }
  NGP_DEVICE bool has(int64_t row, int64_t chunk) const { return row < num_rows && chunk < chunks(); }
  NGP_DEVICE Eight load(int64_t row, int64_t chunk) const {
    if (!has(row, chunk)) return {};
    const uint8_t* at = values + (row * head_dim + chunk * kValues) * bytes_of(from);
    return load_eight<kWide>(from, at, values_of(chunk, head_dim));
  }
};

template <bool kWide>
NGP_KERNEL(kThreads)
row_amax_kernel(Format from, const uint8_t* values, int64_t num_rows, int64_t head_dim, bool finite_only,
                float* out) {
  const Rows<kWide> rows{from, values, num_rows, head_dim};
  for (int64_t row = wave_index() * kRows<kWide>; row < num_rows; row += num_waves() * kRows<kWide>) {
    uint32_t most[kRows<kWide>] = {};
    for (int64_t chunk = lane_index(); chunk < rows.chunks(); chunk += wave_size()) {
      Eight eight[kRows<kWide>];
#pragma unroll
      for (int i = 0; i < kRows<kWide>; ++i) eight[i] = rows.load(row + i, chunk);
#pragma unroll
      for (int i = 0; i < kRows<kWide>; ++i)
        most[i] = larger(most[i], finite_only ? drop_nan(eight[i]) : largest_bits(eight[i]));
    }
#pragma unroll
    for (int i = 0; i < kRows<kWide>; ++i) {
      const uint32_t bits = largest_in_wave(most[i]);
      if (lane_index() == 0 && row + i < num_rows) {
        store_once(reinterpret_cast<uint8_t*>(out + row + i), bits);
      }
    }
  }
}

template <bool kWide>
NGP_KERNEL(kThreads)
encode_plain_kernel(EncodeView view, int64_t total) {
  const int64_t from_bytes = bytes_of(view.from), to_bytes = bytes_of(view.to.format);
  const float most = most_of(view.to.format);
  for (int64_t chunk = chunk_index(); chunk * kValues < total; chunk += num_threads()) {
    const int count = values_of(chunk, total);
    Eight eight = load_eight<kWide>(view.from, view.values + chunk * kValues * from_bytes, count);
#pragma unroll
    for (int i = 0; i < kValues; ++i) eight.value[i] = within(eight.value[i], most);
    uint8_t* to = view.rows + chunk * kValues * to_bytes;
    Bytes16 words[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Float2 pair{eight.value[2 * i], eight.value[2 * i + 1]};
      if (view.to.format == Format::fp32) {
        words[i / 2].word[2 * i % 4] = bits_of(pair.low);
        words[i / 2].word[2 * i % 4 + 1] = bits_of(pair.high);
      } else {
        words[0].word[i] = view.to.format == Format::bf16 ? floats_to_bf16x2(pair) : floats_to_fp16x2(pair);
      }
    }
    const int bytes = count * static_cast<int>(to_bytes);
    store_bytes<kWide>(to, words[0], bytes < 16 ? bytes : 16);
    if (bytes > 16) store_bytes<kWide>(to + 16, words[1], bytes - 16);
  }
}

template <bool kWide>
NGP_KERNEL(kThreads)
encode_fp8_kernel(EncodeView view, int64_t total) {
  const float factor = row_factor(*view.global_scale);
  const int64_t from_bytes = bytes_of(view.from);
  for (int64_t chunk = chunk_index(); chunk * kValues < total; chunk += num_threads()) {
    const int count = values_of(chunk, total);
    Eight eight = load_eight<kWide>(view.from, view.values + chunk * kValues * from_bytes, count);
    drop_nan(eight);
    store_bytes<kWide>(view.rows + chunk * kValues, to_e4m3(eight, factor), count);
  }
}

template <bool kWide>
NGP_KERNEL(kThreads)
encode_fp8_rowwise_kernel(EncodeView view, int64_t num_rows) {
  const int64_t head_dim = view.to.head_dim;
  const Rows<kWide> rows{view.from, view.values, num_rows, head_dim};
  const auto store = [&](int64_t row, int64_t chunk, const Eight& eight, float factor) {
    if (!rows.has(row, chunk)) return;
    uint8_t* to = view.rows + row * head_dim + chunk * kValues;
    store_bytes<kWide>(to, to_e4m3(eight, factor), values_of(chunk, head_dim));
  };
  const int64_t lane = lane_index(), beyond = kWide ? lane + wave_size() : lane;
  for (int64_t row = wave_index() * kRows<kWide>; row < num_rows; row += num_waves() * kRows<kWide>) {
    Eight first[kRows<kWide>];
    uint32_t most[kRows<kWide>];
#pragma unroll
    for (int i = 0; i < kRows<kWide>; ++i) first[i] = kWide ? rows.load(row + i, lane) : Eight{};
#pragma unroll
    for (int i = 0; i < kRows<kWide>; ++i) {
      most[i] = drop_nan(first[i]);
      for (int64_t chunk = beyond; chunk < rows.chunks(); chunk += wave_size()) {
        Eight eight = rows.load(row + i, chunk);
        most[i] = larger(most[i], drop_nan(eight));
      }
    }
#pragma unroll
    for (int i = 0; i < kRows<kWide>; ++i) {
      const float scale = row_scale_of(float_from_bits(largest_in_wave(most[i])), view.scale_is_bf16);
      const float factor = row_factor(scale);
      if constexpr (kWide) store(row + i, lane, first[i], factor);
      for (int64_t chunk = beyond; chunk < rows.chunks(); chunk += wave_size()) {
        Eight eight = rows.load(row + i, chunk);
        drop_nan(eight);
        store(row + i, chunk, eight, factor);
      }
      if (lane != 0 || row + i >= num_rows) continue;
      if (view.scale_is_bf16) {
        store_bytes<false>(view.scales + 2 * (row + i), float_to_bf16(scale), 2);
      } else {
        store_bytes<false>(view.scales + 4 * (row + i), bits_of(scale), 4);
      }
    }
  }
}

// Chunks come in pairs, a pair in neighbouring lanes.
template <bool kWide>
NGP_KERNEL(kThreads)
encode_nvfp4_kernel(EncodeView view, int64_t chunks) {
  const float global_scale = at_least(*view.global_scale, kLeastScale);
  const float per_scale = per_block_scale(global_scale);
  const int64_t from_bytes = bytes_of(view.from);
  const int64_t all = (chunks + wave_size() - 1) / wave_size() * wave_size();  // lanes shuffle together
  for (int64_t chunk = chunk_index(); chunk < all; chunk += num_threads()) {
    const bool is_one = chunk < chunks;
    Eight eight{};
    if (is_one) eight = load_eight<kWide>(view.from, view.values + chunk * kValues * from_bytes, kValues);
    const uint32_t mine = drop_nan(eight), other = shuffle(mine, lane_index() ^ 1);
    if (!is_one) continue;
    const float amax = float_from_bits(larger(mine, other));
    const float wanted = at_least(amax * per_scale, kLeastBlockScale);
    const uint8_t scale = static_cast<uint8_t>(floats_to_e4m3x2({wanted, 0.0f}));
    const float factor = 1.0f / (e4m3x2_to_floats(scale).low * global_scale);
    store_bytes<kWide>(view.rows + chunk * (kValues / 2), to_e2m1(eight, factor), kValues / 2);
    if (chunk % 2 == 0) store_once(view.scales + chunk / 2, scale);
  }
}

// Whether eight values at a time can be read and written whole.
bool is_wide(const EncodeView& view, int64_t total) {
  const bool rowwise = view.to.format == Format::fp8_rowwise;
  const int64_t written = view.to.format == Format::nvfp4 ? 4 : (view.to.format >= Format::fp8 ? 8 : 16);
  return total % kValues == 0 && (!rowwise || view.to.head_dim % kValues == 0) &&
         common_alignment(address(view.values)) == 16 && common_alignment(address(view.rows)) >= written;
}

int64_t rounded_up(int64_t number, int64_t step) { return (number + step - 1) / step; }
Grid chunks_grid(int64_t chunks) { return {rounded_up(chunks, kThreads * kRounds), kThreads}; }
Grid rows_grid(int64_t num_rows) {
  return {blocks_for_waves(rounded_up(num_rows, kRows<true> * kRounds), kThreads), kThreads};
}

}  // namespace

void row_amax(Format from, const uint8_t* values, int64_t num_rows, int64_t head_dim, bool finite_only,
              float* out, Stream stream) {
  const bool wide = head_dim % kValues == 0 && common_alignment(address(values)) == 16;
  launch("row_amax", wide ? row_amax_kernel<true> : row_amax_kernel<false>, rows_grid(num_rows), stream, from,
         values, num_rows, head_dim, finite_only, out);
}

void encode(const EncodeView& view, int64_t num_rows, Stream stream) {
  const int64_t total = num_rows * view.to.head_dim, chunks = (total + kValues - 1) / kValues;
  const bool wide = is_wide(view, total);
  const Grid flat = chunks_grid(chunks);
  switch (view.to.format) {
    case Format::fp8:
      return launch("encode", wide ? encode_fp8_kernel<true> : encode_fp8_kernel<false>, flat, stream, view,
                    total);
    case Format::fp8_rowwise:
      return launch("encode", wide ? encode_fp8_rowwise_kernel<true> : encode_fp8_rowwise_kernel<false>,
                    rows_grid(num_rows), stream, view, num_rows);
    case Format::nvfp4:
      return launch("encode", wide ? encode_nvfp4_kernel<true> : encode_nvfp4_kernel<false>, flat, stream,
                    view, chunks);
    default:
      return launch("encode", wide ? encode_plain_kernel<true> : encode_plain_kernel<false>, flat, stream,
                    view, total);
  }
}

}  // namespace ngram_ple::gpu
