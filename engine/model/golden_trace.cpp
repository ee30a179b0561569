// Inner values and states against vectors, in the order in which the model computes them: names the first that is off.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/model/golden_run.h"

namespace carrel {

namespace {

struct Seen {
  std::vector<float> floats;
  std::vector<int32_t> ints;
  int width = 0;
};

/// One comparison waiting for its place in the order of the graph.
struct Check {
  std::string name;
  double ratio = 0;
};

class Localiser {
 public:
  Localiser(const GoldenModel& model, const GoldenVectors& vectors, GoldenFile& out) : m_(model), v_(vectors), out_(out) {}

  void run() {
    if (v_.file->has("hidden.layers") && !v_.hidden.empty()) check_hidden();
    for (const RegisterError& e : compare_registers(m_, v_)) add(e.name, e.ratio);
    if (v_.trace) {
      run_probed(v_.file->ints("prompt." + v_.trace_prompt + ".ids"), v_.trace_positions);
      check_trace();
      check_rows();
      check_states();
    }
    report();
  }

 private:
  /// One forward; keeps what the nodes wrote last under each name.
  void run_probed(const std::vector<int32_t>& ids, std::span<const int> wanted) {
    seen_.clear();
    const std::vector<int> one = {static_cast<int>(ids.size())};
    const std::vector<int32_t> positions(wanted.begin(), wanted.end());
    sequence_ = std::make_unique<PlainSequence>(&m_.graph.state);
    run_tokens(m_, ids, one, positions, *sequence_, [&](const Value& value, const void* data, int n_rows) {
      Seen& s = seen_[value.name];
      s.width = value.width;
      const size_t n = static_cast<size_t>(n_rows) * static_cast<size_t>(value.width);
      if (value.is_int) {
        s.ints.assign(static_cast<const int32_t*>(data), static_cast<const int32_t*>(data) + n);
      } else {
        s.floats.assign(static_cast<const float*>(data), static_cast<const float*>(data) + n);
      }
    });
  }

  template <class T>
  std::vector<T> rows_at(const std::vector<T>& all, int width, const std::vector<int>& positions) const {
    std::vector<T> out;
    for (const int p : positions) {
      const auto begin = static_cast<size_t>(p) * static_cast<size_t>(width);
      if (begin + static_cast<size_t>(width) > all.size()) return {};
      out.insert(out.end(), all.begin() + static_cast<ptrdiff_t>(begin), all.begin() + static_cast<ptrdiff_t>(begin) + width);
    }
    return out;
  }
  std::vector<float> seen_rows(const std::string& name, const std::vector<int>& positions) const {
    const auto it = seen_.find(name);
    return it == seen_.end() ? std::vector<float>{} : rows_at(it->second.floats, it->second.width, positions);
  }
  std::vector<int32_t> seen_ints(const std::string& name, const std::vector<int>& positions) const {
    const auto it = seen_.find(name);
    return it == seen_.end() ? std::vector<int32_t>{} : rows_at(it->second.ints, it->second.width, positions);
  }
  void add(const std::string& name, double ratio) { checks_.push_back({name, ratio}); }

  void check_hidden() {
    run_probed(longest_prompt(*v_.file), {});
    const std::vector<int32_t> at = v_.file->ints("hidden.pos");
    const std::vector<int> positions(at.begin(), at.end());
    const std::vector<float> want = v_.file->floats("hidden.layers");
    const size_t n_layers = v_.hidden.size(), per_layer = want.size() / n_layers;
    for (size_t l = 0; l < n_layers; ++l) {
      const std::string name = l == 0 ? "embed" : "layers." + std::to_string(l - 1) + ".out";
      const std::vector<float> part(want.begin() + static_cast<ptrdiff_t>(l * per_layer),
                                    want.begin() + static_cast<ptrdiff_t>((l + 1) * per_layer));
      add(name, largest_difference(seen_rows(name, positions), part) / v_.hidden[l]);
    }
  }

  double bound(const std::string& kind) const {
    const auto it = v_.trace_bounds.find(kind);
    return it == v_.trace_bounds.end() ? v_.tight : it->second;
  }

  void check_values(int layer, const char* kind, const std::vector<int>& positions) {
    const std::string key = "layer" + std::to_string(layer) + "." + kind, name = "layers." + std::to_string(layer) + "." + kind;
    if (!v_.trace->has(key)) return;
    add(name, largest_difference(seen_rows(name, positions), v_.trace->floats(key)) / bound(kind));
  }

  /// Experts in any order: sorted by id on both sides.
  void check_routes(int layer) {
    const std::string key = "layer" + std::to_string(layer) + ".", name = "layers." + std::to_string(layer) + ".";
    std::vector<int32_t> ids = v_.trace->ints(key + "route_ids");
    std::vector<float> weights = v_.trace->floats(key + "route_weights");
    const size_t k = v_.trace_positions.empty() ? 0 : ids.size() / v_.trace_positions.size();
    for (size_t row = 0; k > 0 && row < ids.size(); row += k) {
      std::vector<std::pair<int32_t, float>> pairs;
      for (size_t i = row; i < row + k; ++i) pairs.emplace_back(ids[i], weights[i]);
      std::sort(pairs.begin(), pairs.end());
      for (size_t i = 0; i < k; ++i) std::tie(ids[row + i], weights[row + i]) = pairs[i];
    }
    add(name + "route_ids", ids == seen_ints(name + "route_ids", v_.trace_positions) ? 0 : INFINITY);
    add(name + "route_weights",
        largest_difference(seen_rows(name + "route_weights", v_.trace_positions), weights) / bound("route_weights"));
  }

  /// The vectors have unused places (-1) in front, the ops behind: sorted per query on both sides.
  void check_topk(int layer) {
    const std::string key = "layer" + std::to_string(layer) + ".indexer_topk", name = "layers." + std::to_string(layer) + ".indexer_topk";
    if (!v_.trace->has(key) || v_.trace_indexer_positions.empty()) return;
    std::vector<int32_t> want = v_.trace->ints(key), got = seen_ints(name, v_.trace_indexer_positions);
    const size_t k = want.size() / v_.trace_indexer_positions.size();
    for (std::vector<int32_t>* rows : {&want, &got}) {
      for (size_t i = 0; i + k <= rows->size(); i += k)
        std::sort(rows->begin() + static_cast<ptrdiff_t>(i), rows->begin() + static_cast<ptrdiff_t>(i + k));
    }
    add(name, want == got ? 0 : INFINITY);
  }

  void check_trace() {
    const std::vector<int> mhc = {v_.trace_mhc_position};
    for (int l = 0; v_.trace->has("layer" + std::to_string(l) + ".attn_in"); ++l) {
      for (const char* kind : {"attn_hc.post", "attn_hc.comb"}) check_values(l, kind, mhc);
      check_values(l, "attn_in", v_.trace_positions);
      check_values(l, "indexer_q", v_.trace_indexer_positions);
      check_topk(l);
      check_values(l, "attn_out", v_.trace_positions);
      for (const char* kind : {"ffn_hc.post", "ffn_hc.comb"}) check_values(l, kind, mhc);
      check_values(l, "ffn_in", v_.trace_positions);
      check_routes(l);
      check_values(l, "ffn_out", v_.trace_positions);
      check_values(l, "out_streams", v_.trace_positions);
    }
    std::vector<int> outputs(v_.trace_positions.size());
    for (size_t i = 0; i < outputs.size(); ++i) outputs[i] = static_cast<int>(i);
    add("head_in", largest_difference(seen_rows("head_in", outputs), v_.trace->floats("head_in")) / bound("head_in"));
  }

  /// Calls fn(layer number, "compressor" or "indexer", node) for every compressor of the model.
  template <class Fn>
  void for_compressors(Fn fn) const {
    for (const Node& node : m_.graph.nodes) {
      const auto* c = std::get_if<node::Compress>(&node);
      if (!c) continue;
      const std::string& name = m_.graph.values[static_cast<size_t>(c->c)].name;  // layers.3.indexer.c
      const size_t dot = name.find('.', 7);
      fn(std::stoi(name.substr(7, dot - 7)), name.substr(dot + 1, name.rfind('.') - dot - 1), *c);
    }
  }

  void check_rows() {
    for_compressors([&](int layer, const std::string& which, const node::Compress& c) {
      const std::string kind = which == "indexer" ? "indexer_keys" : "compressed_rows";
      const std::string key = "layer" + std::to_string(layer) + "." + kind;
      const std::vector<float> want = v_.trace->floats(key);
      std::vector<float> got;
      for (size_t e = 0; e < want.size() / static_cast<size_t>(c.args.dim); ++e) {
        const std::vector<float> row = sequence_->row(c.rows.group, c.rows.layer, static_cast<int64_t>(e));
        got.insert(got.end(), row.begin(), row.end());
      }
      add("layers." + std::to_string(layer) + "." + kind, largest_difference(got, want) / bound(kind));
    });
  }

  void check_states() {
    const int n = v_.trace_state_after;
    std::vector<int32_t> ids = v_.file->ints("prompt." + v_.trace_prompt + ".ids");
    ids.resize(std::min(ids.size(), static_cast<size_t>(n)));
    run_probed(ids, {});
    const std::string state = "state." + std::to_string(n) + ".layer";
    for_compressors([&](int layer, const std::string& which, const node::Compress& c) {
      const std::string key = state + std::to_string(layer) + "." + which + ".";
      const int open = n / c.args.ratio * c.args.ratio, width = (c.args.overlap ? 2 : 1) * c.args.dim;
      const double limit = bound(which == "indexer" ? "indexer_keys" : "compressed_rows");
      add(key + "tail_c", ring_part(c, open, n, 0, width, key + "tail_c") / limit);
      add(key + "tail_z", ring_part(c, open, n, width, width, key + "tail_z") / limit);
      if (!c.args.overlap) return;
      add(key + "seed_c", ring_part(c, open - c.args.ratio, open, 0, c.args.dim, key + "seed_c") / limit);
      add(key + "seed_z", ring_part(c, open - c.args.ratio, open, width, c.args.dim, key + "seed_z") / limit);
    });
    for (const StateSpec& g : m_.graph.state.groups) {
      if (g.kind != StateKind::kWindow) continue;
      const int group = static_cast<int>(&g - m_.graph.state.groups.data());
      for (int l = 0; l < g.n_layers; ++l) {
        std::vector<float> got;
        for (int p = std::max(0, n - g.window + 1); p < n; ++p) {
          const std::vector<float> row = sequence_->row(group, l, p);
          got.insert(got.end(), row.begin(), row.end());
        }
        const std::string key = state + std::to_string(l) + ".window";
        add(key, largest_difference(got, v_.trace->floats(key)) / bound("compressed_rows"));
      }
    }
  }

  /// Elements [begin, begin + width) of the ring rows of positions [from, to), against a vector. No rows on both sides: no difference.
  double ring_part(const node::Compress& c, int from, int to, int begin, int width, const std::string& key) const {
    std::vector<float> got;
    for (int p = from; p < to; ++p) {
      const auto row = sequence_->ring_row(c.ring, p).subspan(static_cast<size_t>(begin), static_cast<size_t>(width));
      got.insert(got.end(), row.begin(), row.end());
    }
    return got.empty() && !v_.trace->has(key) ? 0 : largest_difference(got, v_.trace->floats(key));
  }

  void report() {
    for (const Check& c : checks_) {
      out_.bound_used = true;
      if (c.ratio > out_.worst) {
        out_.worst = c.ratio;
        out_.worst_at = c.name;
      }
      if (out_.first_off.empty() && !(c.ratio <= 1)) out_.first_off = c.name;
    }
  }

  const GoldenModel& m_;
  const GoldenVectors& v_;
  GoldenFile& out_;
  std::map<std::string, Seen> seen_;
  std::unique_ptr<PlainSequence> sequence_;
  std::vector<Check> checks_;
};

}  // namespace

void localise(const GoldenModel& model, const GoldenVectors& vectors, GoldenFile& out) {
  Localiser(model, vectors, out).run();
}

}  // namespace carrel
