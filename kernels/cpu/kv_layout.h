// Where a layer's cache holds what.
//
// A KV block is, for each kv head, a row of pages of 16 tokens; a page is the keys, then the values, and in int8 the scales
// of both:
//   bf16: keys [dim / 2][16][2], values [8][dim][2]: pairs along what a dot product sums over, as the tiles want them.
//   int8: keys [dim][16], values [16][dim], float32 scales of the keys [16] and of the values [16].
// `dim` is head_dim padded with zeros to a multiple of 32. Slots that belong to no token hold anything at all.
#pragma once
#include <stdint.h>

#include "abi.h"

namespace tg {

enum { TG_PAGE = 16 };  // tokens of a page

inline int32_t padded_dim(int32_t head_dim) { return (head_dim + 31) / 32 * 32; }

struct KvLayout {
  KvLayout(int32_t kv_format, int32_t block_size, int32_t kv_heads, int32_t head_dim)
      : block_size(block_size),
        dim(padded_dim(head_dim)),
        values((int64_t)TG_PAGE * dim * (kv_format == TG_KV_BF16 ? 2 : 1)),
        key_scales(2 * values),
        value_scales(key_scales + TG_PAGE * 4),
        page(kv_format == TG_KV_BF16 ? 2 * values : value_scales + TG_PAGE * 4),
        head(block_size / TG_PAGE * page),
        block(kv_heads * head) {}

  // Bytes from the cache's start to the page of `kv_head` that holds the token at place `inside` of a block.
  int64_t page_at(int32_t block_id, int32_t kv_head, int32_t inside) const {
    return block_id * block + kv_head * head + inside / TG_PAGE * page;
  }

  int32_t block_size;
  int32_t dim;
  int64_t values, key_scales, value_scales;  // bytes from a page's start
  int64_t page, head, block;                 // bytes of a page, of a kv head's pages in a block, of a block
};

}  // namespace tg
