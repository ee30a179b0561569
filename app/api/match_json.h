// A match as the API tells it: in `usage.carrel` of every dialect and in the explanation. For the .cpp files of this folder.
#pragma once
#include "app/api/fields.h"
#include "engine/state/kinds.h"
#include "engine/state/state_manager.h"

namespace carrel {

/// {"nominal", "effective", "restored", "replayed", "veto": [{"kind", "group", "position", "residency", "reason", "cure"}]}
inline Json match_json(const Match& m) {
  Json veto = Json::array();
  for (const Veto& v : m.vetoes) {
    VetoWords words = explain_veto(v.kind, v.residency);
    veto.push_back({{"kind", to_string(v.kind)},
                    {"group", v.group},
                    {"position", v.position},
                    {"residency", v.residency},
                    {"reason", std::move(words.reason)},
                    {"cure", std::move(words.cure)}});
  }
  return {{"nominal", m.nominal}, {"effective", m.effective}, {"restored", m.restored}, {"replayed", 0}, {"veto", std::move(veto)}};
}

}  // namespace carrel
