#include "engine/state/block_key.h"

#include <array>

namespace carrel {

namespace {

void put_u64(std::string& out, uint64_t v) {
  for (int i = 0; i < 8; i++) out.push_back(static_cast<char>(v >> (8 * i)));
}

void put_field(std::string& out, std::string_view field) {
  put_u64(out, field.size());
  out.append(field);
}

std::string_view view(const Digest& d) {
  return {reinterpret_cast<const char*>(d.data()), d.size()};
}

}  // namespace

std::string join_fields(std::string_view domain, std::span<const std::string_view> fields) {
  std::string out;
  size_t n = 16 + domain.size();
  for (const std::string_view f : fields) n += 8 + f.size();
  out.reserve(n);
  put_field(out, domain);
  put_u64(out, fields.size());
  for (const std::string_view f : fields) put_field(out, f);
  return out;
}

Digest key_context(const Digest& model_digest, std::string_view numerics_id, std::string_view row_layout_id) {
  const std::array<std::string_view, 3> fields = {view(model_digest), numerics_id, row_layout_id};
  return sha256(join_fields("carrel context 1", fields));
}

Digest block_key(const Digest& namespace_secret, const Digest& context, const Digest* parent, std::span<const int32_t> tokens) {
  std::string ids;
  ids.reserve(tokens.size() * 4);
  for (const int32_t t : tokens) {
    const auto u = static_cast<uint32_t>(t);
    for (int i = 0; i < 4; i++) ids.push_back(static_cast<char>(u >> (8 * i)));
  }
  const std::array<std::string_view, 3> fields = {view(context), parent == nullptr ? std::string_view{} : view(*parent), ids};
  const std::string message = join_fields("carrel block 1", fields);
  return hmac_sha256(namespace_secret, std::as_bytes(std::span(message)));
}

void extend_keys(BlockKeys& keys, const BlockKeyFn& fn, const Digest& namespace_secret, const Digest& context,
                 std::span<const int32_t> tokens, int block_size, size_t n_blocks) {
  const auto b = static_cast<size_t>(block_size);
  keys.reserve(n_blocks);
  while (keys.size() < n_blocks) {
    const Digest parent = keys.empty() ? Digest{} : keys.back();
    const auto block = tokens.subspan(keys.size() * b, b);
    keys.push_back(fn ? fn(namespace_secret, context, keys.empty() ? nullptr : &parent, block)
                      : block_key(namespace_secret, context, keys.empty() ? nullptr : &parent, block));
  }
}

}  // namespace carrel
