// What an administrator is told of state: each kind's life, how it is restored and what a hit needs of it, how much a group takes, and why
// a match was shortened. The one place of these words: start log, `carrel state`, `usage.carrel`, the admin API and the tables of
// docs/state.md and docs/operate/explain.md (checked by a test) are made from it.
//
// Pure functions over constant tables; any thread.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "engine/state/spec.h"

namespace carrel {

struct KindWords {
  StateKind kind;
  std::string_view what;
  std::string_view life;
  std::string_view restore;
  std::string_view hit;
};
/// In the order of kStateKinds.
std::span<const KindWords> kind_table();
const KindWords& words_of(StateKind kind);
/// The table as Markdown.
std::string kinds_markdown();

/// What one group takes, all its layers.
struct GroupFigures {
  size_t row_bytes = 0;                      // one logical row of one layer
  int64_t rows_per_page = 0;                 // of one layer
  double bytes_per_token = 0;                // of kinds that have rows for every token, padding left out; else 0
  size_t bytes_per_point = 0;                // of kinds that are a value at one position, padding left out; else 0
  size_t page_bytes = 0, padding_bytes = 0;  // padding: of the page
};
GroupFigures figures_of(const StateSpec& spec, int block_size);

struct VetoWords {
  std::string reason;  // why the match could not go on there
  std::string cure;    // what would make the next one longer
};
/// residency: of a Veto. One that is not known gets words that say so.
VetoWords explain_veto(StateKind kind, std::string_view residency);
/// All residencies a veto can have.
std::span<const std::string_view> veto_residencies();
/// Reasons and cures as Markdown, kinds whose words are equal in one row.
std::string vetoes_markdown();

}  // namespace carrel
