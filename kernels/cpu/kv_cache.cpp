// The size of a layer's cache.
#include "kv_layout.h"

int64_t tg_kv_bytes(int32_t kv_format, int32_t blocks, int32_t block_size, int32_t kv_heads, int32_t head_dim) {
  return blocks * tg::KvLayout(kv_format, block_size, kv_heads, head_dim).block;
}
