#include "engine/state/kinds.h"

#include <algorithm>
#include <vector>

namespace carrel {

namespace {

constexpr KindWords kKinds[] = {
    {StateKind::kCompressedKv, "keys and values of every token, plain or several tokens to a row; only grows",
     "a record per block, kept from the moment the block is full; a prefix is dropped from its end backwards, and at once when no resume "
     "point "
     "needs it",
     "whole records come back from a lower tier, seal checked; else computed again", "every block from the first token to the point"},
    {StateKind::kTail, "the seed of the next compressed row: what the last block leaves to the one after it",
     "a small record per block; dropped with the resume point that it belongs to",
     "the record comes back from a lower tier, seal checked; else computed again", "the last block before the point"},
    {StateKind::kWindow, "keys and values of the last W tokens",
     "a record per block; those in the middle of a prompt are dropped first, the last window of a conversation last",
     "the records of the window come back from a lower tier, seal checked; else computed again",
     "the blocks that hold the W − 1 tokens before the point"},
    {StateKind::kIndexer, "keys by which the indexer chooses compressed rows; grows with them", "like the compressed rows it belongs to",
     "whole records come back from a lower tier, seal checked; else computed again", "every block from the first token to the point"},
    {StateKind::kRecurrent, "registers: one value that sums up all tokens so far",
     "kept at state points only: the prompt's end, ends of messages, junctions, the rungs of the ladder; thinned when the namespace's "
     "share of the "
     "budget is used up",
     "copied from the record into the sequence's slot, from a lower tier with its seal checked; else computed again",
     "the registers at exactly the point"},
};

constexpr std::string_view kResidencies[] = {"absent", "evicted", "offloaded", "quarantined", "half_block", "layout", "epoch", "alignment"};

VetoWords absent(StateKind kind) {
  if (kind == StateKind::kRecurrent)
    return {"no registers were kept at this point", "nothing to do: this request leaves them there, and the next one hits"};
  return {"it was computed, but not kept at this point",
          "nothing to do: this request keeps it, and the next one hits (store: false keeps nothing)"};
}

VetoWords evicted(StateKind kind) {
  std::string cure =
      "raise cache.max_size_gb, or keep what is dropped in lower tiers (cache.offload.enable, .host_memory_size, .disk_size)";
  if (kind == StateKind::kWindow)
    return {"the window at this point was dropped to make room; those in the middle of a prompt go first", std::move(cure)};
  if (kind == StateKind::kRecurrent) return {"the registers at this point were dropped to make room, or thinned out", std::move(cure)};
  return {"it was dropped to make room", std::move(cure)};
}

/// A check that fails is a fault of memory or of Carrel, never of the request.
VetoWords failed(std::string what) {
  return {std::move(what) + "; the record was refused",
          "computed again now, so that the next one hits; look for the error in the log, run `carrel drill`, and test the machine's memory "
          "if it "
          "comes back"};
}

std::string row(std::initializer_list<std::string_view> cells) {
  std::string out = "|";
  for (const std::string_view c : cells) out += " " + std::string(c) + " |";
  return out + "\n";
}

}  // namespace

std::span<const KindWords> kind_table() {
  return kKinds;
}

const KindWords& words_of(StateKind kind) {
  return kKinds[static_cast<size_t>(kind)];
}

std::string kinds_markdown() {
  std::string out = "| kind | what it is | life | restored | a hit at a point needs |\n|---|---|---|---|---|\n";
  for (const KindWords& k : kKinds) out += row({"`" + std::string(to_string(k.kind)) + "`", k.what, k.life, k.restore, k.hit});
  return out;
}

GroupFigures figures_of(const StateSpec& spec, int block_size) {
  const RowLayout layout = layout_of(spec, block_size);
  GroupFigures f;
  f.row_bytes = layout.row_stride_bytes;
  f.rows_per_page = layout.rows_per_page;
  f.page_bytes = page_bytes(spec, block_size);
  const size_t used = f.row_bytes * static_cast<size_t>(f.rows_per_page) * static_cast<size_t>(spec.n_layers);
  f.padding_bytes = f.page_bytes - used;
  if (spec.ratio > 0)
    f.bytes_per_token = static_cast<double>(f.row_bytes * static_cast<size_t>(spec.n_layers)) / spec.ratio;
  else
    f.bytes_per_point = used;
  return f;
}

VetoWords explain_veto(StateKind kind, std::string_view residency) {
  if (residency == "absent") return absent(kind);
  if (residency == "evicted") return evicted(kind);
  if (residency == "offloaded")
    return {"its copy lies in a lower tier that was too slow: it missed a deadline lately, or computing again is quicker by measured rates",
            "a faster disk for cache.offload.path, a larger cache.offload.host_memory_size, or a longer cache.offload.restore_deadline_ms"};
  if (residency == "quarantined") return failed("a check or a digest failed before");
  if (residency == "half_block") return failed("check 1: a record lacks rows of its block");
  if (residency == "layout") return failed("check 2: a record is laid out otherwise than the kernels read it");
  if (residency == "epoch")
    return {"check 3: a record was made before the layout or the model changed",
            "nothing to do: computed again now, and the next one hits"};
  if (residency == "alignment") return failed("check 4: a record lies at an address that kernels cannot read");
  return {"not known to this version: " + std::string(residency), "look into the log"};
}

std::span<const std::string_view> veto_residencies() {
  return kResidencies;
}

std::string vetoes_markdown() {
  std::string out = "| residency | kind | reason | what would cure it |\n|---|---|---|---|\n";
  for (const std::string_view residency : kResidencies) {
    std::vector<std::pair<std::string, VetoWords>> rows;
    for (const StateKind kind : kStateKinds) {
      VetoWords words = explain_veto(kind, residency);
      const std::string name = "`" + std::string(to_string(kind)) + "`";
      const auto same = std::find_if(rows.begin(), rows.end(),
                                     [&](const auto& r) { return r.second.reason == words.reason && r.second.cure == words.cure; });
      if (same != rows.end())
        same->first += ", " + name;
      else
        rows.emplace_back(name, std::move(words));
    }
    for (const auto& [kinds, words] : rows)
      out += row({"`" + std::string(residency) + "`", rows.size() == 1 ? std::string_view("any") : std::string_view(kinds), words.reason,
                  words.cure});
  }
  return out;
}

}  // namespace carrel
