// Identity of a block: a keyed SHA-256 chained from the namespace root. No other hash takes part in deciding what two prefixes share.
//
// key(i) = HMAC-SHA-256(namespace secret, fields of "carrel block 1": context, parent key (empty at the root), token ids)
// context = SHA-256(fields of "carrel context 1": model digest, numerics id, row layout id)
// A field is its length as 8 little-endian bytes, then its bytes, so that no two lists of fields give the same message.
// Threads: everything here is pure.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"

namespace carrel {

/// Keys of the blocks of one prompt, first block first. A caller keeps it beside its tokens and lends it to admit, so that a request that
/// waits is hashed once.
using BlockKeys = std::vector<Digest>;

/// Length-prefixed fields, the domain first.
std::string join_fields(std::string_view domain, std::span<const std::string_view> fields);

Digest key_context(const Digest& model_digest, std::string_view numerics_id, std::string_view row_layout_id);

/// parent null: the first block.
Digest block_key(const Digest& namespace_secret, const Digest& context, const Digest* parent, std::span<const int32_t> tokens);

/// Same shape as block_key; tests put a colliding one in its place.
using BlockKeyFn = std::function<Digest(const Digest&, const Digest&, const Digest*, std::span<const int32_t>)>;

/// Extends keys to the first n_blocks blocks of the tokens.
void extend_keys(BlockKeys& keys, const BlockKeyFn& fn, const Digest& namespace_secret, const Digest& context,
                 std::span<const int32_t> tokens, int block_size, size_t n_blocks);

}  // namespace carrel
