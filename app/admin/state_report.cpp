#include "app/admin/state_report.h"

#include <cstdio>
#include <nlohmann/json.hpp>

#include "app/admin/table.h"
#include "engine/state/kinds.h"

namespace carrel {

namespace {

using Json = nlohmann::ordered_json;

std::string megabytes(size_t n) {
  char text[48];
  std::snprintf(text, sizeof text, "%.1f MB", static_cast<double>(n) / 1e6);
  return text;
}

std::string number(double x) {
  char text[48];
  std::snprintf(text, sizeof text, "%.10g", x);
  return text;
}

/// "96 a token", "512 a point"
std::string grain(const GroupFigures& f) {
  return f.bytes_per_point > 0 ? std::to_string(f.bytes_per_point) + " a point" : number(f.bytes_per_token) + " a token";
}

std::string rows(const StateSpec& g, const GroupFigures& f) {
  if (g.ratio == 0) return std::to_string(f.rows_per_page) + (f.rows_per_page == 1 ? " row" : " rows") + " at a point";
  return g.ratio == 1 ? "1 row a token" : "1 row for " + std::to_string(g.ratio) + " tokens";
}

Json group_json(const StateSpec& g, int block_size) {
  const GroupFigures f = figures_of(g, block_size);
  const KindWords& words = words_of(g.kind);
  Json j{{"group", g.name},
         {"kind", to_string(g.kind)},
         {"layers", g.n_layers},
         {"ratio", g.ratio},
         {"rows_per_page", f.rows_per_page},
         {"row_bytes", f.row_bytes},
         {"dtype", to_string(g.dtype)},
         {"bytes_per_token", f.bytes_per_token},
         {"bytes_per_point", f.bytes_per_point},
         {"page_bytes", f.page_bytes},
         {"padding_bytes", f.padding_bytes}};
  if (g.window > 0) j["window_tokens"] = g.window;
  j["life_cycle"] = words.life;
  j["restore_rule"] = words.restore;
  j["hit_rule"] = words.hit;
  return j;
}

Json tiers_json(const StateStats& s, bool live) {
  Json device{{"tier", "device"}, {"active", true}, {"budget_bytes", s.budget_bytes}};
  Json host{{"tier", "host_memory"}, {"active", s.host_budget_bytes > 0}, {"budget_bytes", s.host_budget_bytes}};
  Json disk{{"tier", "disk"}, {"active", s.disk_budget_bytes > 0}, {"budget_bytes", s.disk_budget_bytes}};
  if (live) {
    device["used_bytes"] = s.used_bytes;
    host["used_bytes"] = s.host_bytes;
    host["extents"] = s.n_host_extents;
    host["offloaded"] = s.offloaded;
    host["restored"] = s.restored - s.restored_from_disk;
    host["evicted"] = s.host_evicted;
    disk["used_bytes"] = s.disk_bytes;
    disk["extents"] = s.n_disk_extents;
    disk["offloaded"] = s.stored_on_disk;
    disk["restored"] = s.restored_from_disk;
    disk["evicted"] = s.disk_evicted;
    disk["write_failures"] = s.disk_write_failures;
    if (!s.disk_alert.empty()) disk["alert"] = s.disk_alert;
  }
  return Json::array({std::move(device), std::move(host), std::move(disk)});
}

Json counters_json(const StateStats& s) {
  return {{"admitted", s.admitted},
          {"prompt_tokens", s.prompt_tokens},
          {"nominal_tokens", s.nominal_tokens},
          {"effective_tokens", s.effective_tokens},
          {"restored_tokens", s.restored_tokens},
          {"ghost_tokens", s.ghost_tokens},
          {"published", s.published},
          {"adopted", s.adopted},
          {"filled", s.filled},
          {"evicted", s.evicted},
          {"purged", s.purged},
          {"captured", s.captured},
          {"captures_skipped", s.captures_skipped},
          {"compared", s.compared},
          {"digest_mismatches", s.digest_mismatches},
          {"quarantined", s.quarantined},
          {"key_collisions", s.key_collisions},
          {"check_failures",
           {{"whole_blocks", s.check_failures[0]},
            {"layout", s.check_failures[1]},
            {"intersection", s.check_failures[2]},
            {"alignment", s.check_failures[3]}}}};
}

std::string tiers_text(const StateStats& s) {
  return "tiers: device " + megabytes(s.budget_bytes) + "; host memory " +
         (s.host_budget_bytes > 0 ? megabytes(s.host_budget_bytes) : "off (cache.offload.enable, .tiers, .host_memory_size)") + "; disk " +
         (s.disk_budget_bytes > 0 ? megabytes(s.disk_budget_bytes) : "off") + "\n";
}

/// "csa, hca"; empty: the model has none of the kind.
std::string groups_of(const ModelState& state, StateKind kind) {
  std::string names;
  for (const StateSpec& g : state.groups)
    if (g.kind == kind) names += (names.empty() ? "" : ", ") + g.name;
  return names;
}

std::string ladder_text(const StateStats& s) {
  return s.ladder_tokens > 0 ? ", registers on a ladder of " + std::to_string(s.ladder_tokens) + " tokens" : "";
}

}  // namespace

std::string state_json(const std::string& model, const ModelState& state, const StateStats& stats, bool live) {
  Json groups = Json::array();
  for (size_t g = 0; g < state.groups.size(); g++) {
    Json j = group_json(state.groups[g], state.block_size);
    const auto kind = static_cast<size_t>(state.groups[g].kind);
    if (live) {
      j["records"] = stats.groups[g].n_resident;
      j["leased"] = stats.groups[g].n_leased;
      j["bytes"] = static_cast<size_t>(stats.groups[g].n_resident) * stats.groups[g].page_bytes;
      j["vetoes_of_kind"] = stats.vetoes[kind];
      j["restore_failures_of_kind"] = stats.restore_failures[kind];
    }
    groups.push_back(std::move(j));
  }
  Json j{{"model", model},
         {"block_tokens", state.block_size},
         {"ladder_tokens", stats.ladder_tokens},
         {"slot_bytes", state.slot_bytes},
         {"groups", std::move(groups)},
         {"tiers", tiers_json(stats, live)}};
  if (live) {
    j["epoch"] = stats.epoch;
    j["sequences"] = stats.n_sequences;
    j["blocks"] = stats.n_blocks;
    j["ghosts"] = stats.n_ghosts;
    j["inert_alarm"] = stats.inert_alarm;
    j["counters"] = counters_json(stats);
  }
  return j.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string state_text(const std::string& model, const ModelState& state, const StateStats& stats) {
  std::string out = model + ": " + std::to_string(state.groups.size()) + " groups of state, blocks of " + std::to_string(state.block_size) +
                    " tokens" + ladder_text(stats) + "; rings and registers of a running request " + std::to_string(state.slot_bytes) +
                    " bytes\n\n";
  Table table;
  table.row({"group", "kind", "layers", "rows of a layer", "bytes, all layers", "page of a block", "form"});
  for (const StateSpec& g : state.groups) {
    const GroupFigures f = figures_of(g, state.block_size);
    table.row({g.name, std::string(to_string(g.kind)), std::to_string(g.n_layers),
               rows(g, f) + (g.window > 0 ? ", window of " + std::to_string(g.window) : ""), grain(f),
               std::to_string(f.page_bytes) + (f.padding_bytes > 0 ? " (" + std::to_string(f.padding_bytes) + " padding)" : ""),
               std::string(to_string(g.dtype))});
  }
  out += table.text();
  for (const StateKind kind : kStateKinds) {
    const std::string names = groups_of(state, kind);
    if (names.empty()) continue;
    const KindWords& w = words_of(kind);
    out += "\n" + std::string(to_string(kind)) + " (" + names + "): " + std::string(w.what) + "\n  life         " + std::string(w.life) +
           "\n  restored     " + std::string(w.restore) + "\n  a hit needs  " + std::string(w.hit) + "\n";
  }
  return out + "\n" + tiers_text(stats);
}

std::vector<std::string> state_lines(const ModelState& state, const StateStats& stats) {
  std::vector<std::string> out;
  out.push_back("states: block " + std::to_string(state.block_size) + " tokens, " + std::to_string(state.groups.size()) + " groups, " +
                std::to_string(state.slot_bytes) + " bytes of rings and registers per sequence" + ladder_text(stats) + "; " +
                tiers_text(stats));
  out.back().pop_back();
  for (const StateSpec& g : state.groups) {
    const GroupFigures f = figures_of(g, state.block_size);
    out.push_back("state " + g.name + " kind=" + std::string(to_string(g.kind)) + " layers=" + std::to_string(g.n_layers) +
                  " ratio=" + std::to_string(g.ratio) + " row_bytes=" + std::to_string(f.row_bytes) +
                  " dtype=" + std::string(to_string(g.dtype)) + " window=" + std::to_string(g.window) +
                  " page_bytes=" + std::to_string(f.page_bytes) + " padding_bytes=" + std::to_string(f.padding_bytes));
  }
  for (const StateKind kind : kStateKinds) {
    if (groups_of(state, kind).empty()) continue;
    const KindWords& w = words_of(kind);
    out.push_back("state kind " + std::string(to_string(kind)) + ": life: " + std::string(w.life) +
                  "; restored: " + std::string(w.restore) + "; a hit needs: " + std::string(w.hit));
  }
  return out;
}

}  // namespace carrel
