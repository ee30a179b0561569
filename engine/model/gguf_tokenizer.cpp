// A GGUF tokenizer as bytes of our own: tokens may be any bytes, which JSON cannot hold. Layout: docs/formats/model_store.md.
#include <bit>

#include "base/codec.h"
#include "engine/model/gguf.h"

namespace carrel {
namespace {

constexpr std::string_view kMagic = "CRLGTOK1";

void put_flag(ByteWriter& w, const std::optional<bool>& flag) {
  w.u8(!flag ? 2 : *flag ? 1 : 0);
}

Result<std::optional<bool>> get_flag(ByteReader& r) {
  CARREL_ASSIGN(const uint8_t v, r.u8());
  if (v > 2) return fail(Code::kCorrupt, "impossible flag");
  return v == 2 ? std::optional<bool>() : std::optional<bool>(v == 1);
}

void put_texts(ByteWriter& w, const std::vector<std::string>& texts) {
  w.u64(texts.size());
  for (const std::string& t : texts) w.field(t);
}

Result<std::string> get_text(ByteReader& r) {
  CARREL_ASSIGN(const auto bytes, r.field());
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

Result<uint64_t> get_count(ByteReader& r, uint64_t min_bytes) {
  CARREL_ASSIGN(const uint64_t n, r.u64());
  if (n > r.left() / min_bytes) return fail(Code::kCorrupt, "impossible count");
  return n;
}

Result<std::vector<std::string>> get_texts(ByteReader& r) {
  CARREL_ASSIGN(const uint64_t n, get_count(r, 8));
  std::vector<std::string> out(n);
  for (std::string& t : out) {
    CARREL_ASSIGN(t, get_text(r));
  }
  return out;
}

}  // namespace

Bytes encode_gguf_tokenizer(const GgufTokenizer& t) {
  ByteWriter w;
  w.raw(std::as_bytes(std::span(kMagic)));
  w.field(t.model);
  w.field(t.pre);
  put_texts(w, t.tokens);
  w.u64(t.scores.size());
  for (const float s : t.scores) w.u32(std::bit_cast<uint32_t>(s));
  w.u64(t.types.size());
  for (const int32_t v : t.types) w.u32(static_cast<uint32_t>(v));
  put_texts(w, t.merges);
  for (const int64_t id : {t.bos, t.eos, t.eot, t.eom, t.unk, t.pad}) w.i64(id);
  for (const auto& flag : {t.add_bos, t.add_eos, t.add_space_prefix}) put_flag(w, flag);
  return w.take();
}

Result<GgufTokenizer> decode_gguf_tokenizer(std::span<const std::byte> bytes) {
  ByteReader r(bytes);
  GgufTokenizer t;
  CARREL_ASSIGN(const auto magic, r.raw(kMagic.size()));
  if (!std::ranges::equal(magic, std::as_bytes(std::span(kMagic)))) return fail(Code::kCorrupt, "is no stored tokenizer");
  CARREL_ASSIGN(t.model, get_text(r));
  CARREL_ASSIGN(t.pre, get_text(r));
  CARREL_ASSIGN(t.tokens, get_texts(r));
  CARREL_ASSIGN(const uint64_t n_scores, get_count(r, 4));
  t.scores.resize(n_scores);
  for (float& s : t.scores) {
    CARREL_ASSIGN(const uint32_t bits, r.u32());
    s = std::bit_cast<float>(bits);
  }
  CARREL_ASSIGN(const uint64_t n_types, get_count(r, 4));
  t.types.resize(n_types);
  for (int32_t& v : t.types) {
    CARREL_ASSIGN(const uint32_t bits, r.u32());
    v = static_cast<int32_t>(bits);
  }
  CARREL_ASSIGN(t.merges, get_texts(r));
  for (int64_t* id : {&t.bos, &t.eos, &t.eot, &t.eom, &t.unk, &t.pad}) {
    CARREL_ASSIGN(*id, r.i64());
  }
  for (auto* flag : {&t.add_bos, &t.add_eos, &t.add_space_prefix}) {
    CARREL_ASSIGN(*flag, get_flag(r));
  }
  if (r.left() != 0) return fail(Code::kCorrupt, "has bytes behind its end");
  return t;
}

}  // namespace carrel
