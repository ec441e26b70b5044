// Every operator's schema. Their implementations register in the file that is named after the operator.
//
// Formats and dtypes cross as strings: ScalarType arguments break AOTInductor on torch 2.11. An `out` form
// returns nothing: an alias of its argument would fail torch.library.opcheck.
#include <torch/csrc/stable/library.h>

#define NGP_HASH_ARGUMENTS                                                                     \
  "Tensor input_ids, Tensor query_start_loc, Tensor ngram_context, Tensor layer_multipliers, " \
  "Tensor ngram_heads_vocab_sizes, Tensor ngram_heads_offsets, int eos_token_id, int heads_per_ngram"
#define NGP_TABLE_ARGUMENTS                                                                              \
  "Tensor weight, Tensor? scale, Tensor? global_scale, *, str format, str out_dtype, int head_dim, int " \
  "row_start=0, "                                                                                        \
  "int row_end=-1"
#define NGP_ROWS_ARGUMENTS \
  "Tensor rows, Tensor? scale, Tensor? global_scale, *, str format, str out_dtype, int head_dim"
#define NGP_ENCODE_ARGUMENTS "Tensor rows, Tensor? global_scale=None, *, str format, str scale_dtype=\"fp32\""

#define NGP_PEERS_ARGUMENTS                                                                                  \
  "Tensor block, Tensor block_addresses, Tensor? global_scale, *, str format, str out_dtype, int head_dim, " \
  "int num_rows"
#define NGP_PINNED_ARGUMENTS                                                                           \
  "Tensor ids, Tensor weight, Tensor? global_scale, *, int reader, str way, int sms, str format, str " \
  "out_dtype, int head_dim, int row_start=0"

STABLE_TORCH_LIBRARY(ngram_ple, m) {
  m.def("ngram_ids(" NGP_HASH_ARGUMENTS ") -> Tensor");
  m.def("ngram_ids.out(" NGP_HASH_ARGUMENTS ", *, Tensor(a!) out) -> ()");
  m.def("lookup(Tensor ids, " NGP_TABLE_ARGUMENTS ") -> Tensor");
  m.def("lookup.out(Tensor ids, " NGP_TABLE_ARGUMENTS ", Tensor(a!) out) -> ()");
  m.def("embed(" NGP_HASH_ARGUMENTS ", " NGP_TABLE_ARGUMENTS ") -> Tensor");
  m.def("embed.out(" NGP_HASH_ARGUMENTS ", " NGP_TABLE_ARGUMENTS ", Tensor(a!) out) -> ()");
  m.def("lookup_peers(Tensor ids, " NGP_PEERS_ARGUMENTS ") -> Tensor");
  m.def("embed_peers(" NGP_HASH_ARGUMENTS ", " NGP_PEERS_ARGUMENTS ") -> Tensor");
  m.def("decode(" NGP_ROWS_ARGUMENTS ") -> Tensor");
  m.def("decode.out(" NGP_ROWS_ARGUMENTS ", Tensor(a!) out) -> ()");
  m.def("row_amax(Tensor rows, *, bool finite_only=False) -> Tensor");
  m.def("row_amax.out(Tensor rows, *, bool finite_only=False, Tensor(a!) out) -> ()");
  m.def("encode(" NGP_ENCODE_ARGUMENTS ") -> (Tensor, Tensor)");
  m.def("encode.out(" NGP_ENCODE_ARGUMENTS ", Tensor(a!) weight, Tensor(b!) scale) -> ()");
  m.def("pinned_lookup(" NGP_PINNED_ARGUMENTS ") -> Tensor");
  m.def("pinned_lookup.out(" NGP_PINNED_ARGUMENTS ", Tensor(a!) out) -> ()");
  // The first half of a staged lookup, to run beside other work of the GPU: `lookup` of `places` in `rows` is
  // the second. And bookkeeping behind pinned_lookup. For ngram_ple.tables alone.
  m.def(
      "bring_rows(Tensor ids, Tensor weight, *, int reader, int stream, Tensor(a!) places, "
      "Tensor(b!) rows) -> ()");
  m.def("reader_bytes(Tensor slots, str format, int head_dim, int max_ids, int threads) -> Tensor");
  m.def(
      "open_reader(Tensor slots, Tensor device_memory, Tensor pinned_memory, str format, int head_dim, int "
      "row_start, int max_ids, int threads) -> int");
  m.def("close_reader(Tensor slots, int reader) -> ()");
  m.def("reader_counters(Tensor slots, int reader) -> Tensor");
}
