// What a fuzzer does with bytes, and what must hold then. Shared by extent_fuzz.cpp and the test that runs its corpus; linked into neither
// the product nor its libraries.
#pragma once
#include <string_view>

#include "storage/extent.h"
#include "storage/extent_samples.h"

namespace carrel::fuzz {

inline bool typed(const Error& e) {
  return (e.code == Code::kCorrupt || e.code == Code::kUnsupported) && !e.message.empty();
}

/// Whatever is accepted lies inside of the bytes in ascending order, and opens to rows or to a named error with zeros.
inline bool extent_holds(std::span<const std::byte> bytes) {
  const auto header = parse_extent_header(bytes);
  const auto view = ExtentView::parse(bytes);
  if (!header) return typed(header.error()) && !view;
  if (!view) return typed(view.error());
  const ExtentHeader& h = view->header();
  if (h.total_bytes != bytes.size() || h.checksum != header->checksum || !extent_tail_matches(*header, bytes.last(kExtentUnitBytes)))
    return false;
  const ExtentKey key = samples::key_of("golden namespace");
  const ExtentKey* with = h.encrypted ? &key : nullptr;
  const auto tokens = open_tokens(*view, with);
  if (tokens ? tokens->size() != h.n_tokens : !typed(tokens.error())) return false;
  uint64_t end = h.tokens_offset + 4 * uint64_t{h.n_tokens};
  for (size_t i = 0; i < h.parts.size(); i++) {
    const ExtentPartInfo& p = h.parts[i];
    if (p.offset < end || p.offset % 64 != 0 || p.offset + p.rows_bytes + 32 > bytes.size()) return false;
    end = p.offset + p.rows_bytes + 32;
    Bytes rows(p.rows_bytes, std::byte{1});
    const Status s = open_part(*view, i, with, rows, nullptr);
    if (!s && (!typed(s.error()) || rows != Bytes(p.rows_bytes))) return false;
  }
  const Status whole = check_extent(bytes, with, h.identity);
  return whole || typed(whole.error());
}

/// As they are, and with checksum and tail made to fit, so that what lies behind the checksum is met too.
inline bool extent(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  const auto lengths = peek_extent(bytes);
  if (!lengths && !typed(lengths.error())) return false;
  if (!extent_holds(bytes)) return false;
  Bytes repaired(bytes.begin(), bytes.end());
  return !samples::repair(repaired) || extent_holds(repaired);
}

}  // namespace carrel::fuzz
