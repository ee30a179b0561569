// For tests: state layouts of several families in small, and a fake kernel whose rows are a known function of (group, layer, row, tokens so
// far), so that a reader notices a stale, foreign or missing page at once.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/state/state_manager.h"

namespace carrel::sim {

inline uint64_t mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9E3779B97F4A7C15u + b + 0x7F4A7C15u;
  x ^= x >> 30, x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27, x *= 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// Seeded draws, the same on every machine.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(seed) {}
  uint64_t next() { return state_ = mix(state_, 1); }
  int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
  bool percent(int p) { return below(100) < p; }

 private:
  uint64_t state_;
};

inline StateSpec group(std::string name, StateKind kind, int ratio, int n_layers, int row_elems, int window = 0, int n_rows = 0) {
  StateSpec s;
  s.name = std::move(name);
  s.kind = kind;
  s.ratio = ratio;
  s.n_layers = n_layers;
  s.row_elems = row_elems;
  s.window = window;
  s.n_rows = n_rows;
  return s;
}

inline ModelState model_of(std::vector<StateSpec> groups, size_t slot_bytes = 0) {
  ModelState m;
  m.groups = std::move(groups);
  m.block_size = block_size_of(m.groups);
  m.slot_bytes = slot_bytes;
  for (const StateSpec& g : m.groups)
    if (g.kind == StateKind::kRecurrent) m.slot_bytes += page_bytes(g, m.block_size);
  return m;
}

inline ModelState v4_like(int window = 128, int hca = 128) {
  return model_of({group("window", StateKind::kWindow, 1, 2, 2, window), group("csa", StateKind::kCompressedKv, 4, 1, 3),
                   group("csa.index", StateKind::kIndexer, 4, 1, 1), group("hca", StateKind::kCompressedKv, hca, 1, 3),
                   group("csa.tail", StateKind::kTail, 0, 1, 2, 0, 4)},
                  64 * sizeof(uint32_t));
}
inline ModelState demo_like() {
  return v4_like(64, 16);
}
inline ModelState gemma_like() {
  return model_of({group("kv", StateKind::kCompressedKv, 1, 1, 2), group("window", StateKind::kWindow, 1, 2, 1, 512)});
}
inline ModelState plain() {
  return model_of({group("kv", StateKind::kCompressedKv, 1, 2, 2)});
}
inline ModelState mistral_like() {
  return model_of({group("window", StateKind::kWindow, 1, 1, 2, 16)});
}

/// Registers that cost as much as the logs of some blocks: rungs are apart.
inline ModelState qwen_like() {
  return model_of({group("kv", StateKind::kCompressedKv, 1, 1, 1), group("conv", StateKind::kRecurrent, 0, 2, 4, 0, 3),
                   group("delta", StateKind::kRecurrent, 0, 2, 8, 0, 12)});
}
/// Registers that cost less than the logs of one block, and logs that are none of theirs.
inline ModelState lfm_like() {
  return model_of({group("conv", StateKind::kRecurrent, 0, 2, 2, 0, 2), group("kv", StateKind::kCompressedKv, 1, 1, 2)});
}

inline StateConfig config_of(ModelState model, size_t budget = 64 << 20) {
  StateConfig c;
  c.kernel_layout_id = page_layout_id(model);
  c.model = std::move(model);
  c.numerics_id = "sim";
  c.budget_bytes = budget;
  c.max_sequences = 64;
  c.max_step_tokens = 4096;
  c.poison = true;
  c.audit = true;
  return c;
}

inline std::unique_ptr<StateManager> make(StateConfig c) {
  auto m = StateManager::create(std::move(c));
  if (!m) ADD_FAILURE() << m.error().text();
  return m ? std::move(*m) : nullptr;
}

inline Digest secret_of(const std::string& ns) {
  return sha256("secret of " + ns);
}

inline AdmitRequest ask(std::span<const int32_t> tokens, const std::string& ns = "a", int64_t max_new = 0) {
  AdmitRequest r;
  r.tokens = tokens;
  r.namespace_id = ns;
  r.namespace_secret = secret_of(ns);
  r.max_new_tokens = max_new;
  return r;
}

inline std::vector<int32_t> text(int64_t n, uint64_t seed = 1) {
  std::vector<int32_t> t;
  Dice dice(seed);
  for (int64_t i = 0; i < n; i++) t.push_back(static_cast<int32_t>(dice.below(1000)));
  return t;
}

inline std::vector<int32_t> join(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// One request with its tokens: the fake kernel.
class Reader {
 public:
  /// The model outlives the reader.
  Reader(const ModelState& model, Sequence sequence, std::vector<int32_t> tokens)
      : model_(&model), seq(std::move(sequence)), tokens_(std::move(tokens)) {
    hash_.push_back(7);
    for (const int32_t t : tokens_) hash_.push_back(mix(hash_.back(), static_cast<uint64_t>(t)));
  }

  std::span<const int32_t> tokens() const { return tokens_; }
  int64_t n_tokens() const { return static_cast<int64_t>(tokens_.size()); }
  int64_t left() const { return n_tokens() - seq.n_past(); }
  uint64_t hash_at(int64_t n) const { return hash_[static_cast<size_t>(n)]; }
  void add(int32_t token) {
    tokens_.push_back(token);
    hash_.push_back(mix(hash_.back(), static_cast<uint64_t>(token)));
  }

  /// What a kernel would read for the next position; false where anything is not what it must be.
  bool verify() const {
    const int64_t past = seq.n_past();
    for (size_t g = 0; g < model_->groups.size(); g++) {
      const StateSpec& s = model_->groups[g];
      if (s.kind == StateKind::kRecurrent) {
        for (int r = 0; past > 0 && r < s.n_rows; r++)
          if (!check(g, seq.restored() ? past / model_->block_size - 1 : kSlot, r, past)) return false;
        continue;
      }
      if (s.kind == StateKind::kTail) {
        const int64_t b = past / model_->block_size - 1;
        for (int r = 0; b >= 0 && r < s.n_rows; r++)
          if (!check(g, b, r, (b + 1) * model_->block_size)) return false;
        continue;
      }
      const int64_t from = s.kind == StateKind::kWindow ? std::max<int64_t>(0, past - s.window + 1) : 0;
      for (int64_t r = from; r < past / s.ratio; r++)
        if (!check(g, r * s.ratio / model_->block_size, r, (r + 1) * s.ratio)) return false;
    }
    const int64_t open = past / model_->block_size * model_->block_size;
    for (int64_t p = std::max(open, past - 64); has_ring() && p < past; p++) {
      uint32_t word = 0;
      std::memcpy(&word, seq.slot() + p % 64 * 4, 4);
      if (word != static_cast<uint32_t>(hash_at(p + 1))) return false;
    }
    return true;
  }

  /// Computes the next n tokens: reads, writes, advances.
  Status step(int64_t n) {
    CARREL_TRY(seq.reserve(n));
    if (!verify()) return fail(Code::kCorrupt, "a reader saw what it must not see", "sim");
    const int64_t past = seq.n_past(), end = past + n;
    for (size_t g = 0; g < model_->groups.size(); g++) {
      const StateSpec& s = model_->groups[g];
      if (s.kind == StateKind::kRecurrent) {
        for (int r = 0; r < s.n_rows; r++) {
          for (int64_t b = past / model_->block_size; (b + 1) * model_->block_size <= end; b++)
            if (seq.pages()[g][b] != nullptr) write(g, b, r, (b + 1) * model_->block_size);
          write(g, kSlot, r, end);
        }
        continue;
      }
      if (s.kind == StateKind::kTail) {
        for (int64_t b = past / model_->block_size; (b + 1) * model_->block_size <= end; b++)
          for (int r = 0; r < s.n_rows; r++) write(g, b, r, (b + 1) * model_->block_size);
        continue;
      }
      for (int64_t r = past / s.ratio; (r + 1) * s.ratio <= end; r++) write(g, r * s.ratio / model_->block_size, r, (r + 1) * s.ratio);
    }
    for (int64_t p = past; has_ring() && p < end; p++) {
      const auto word = static_cast<uint32_t>(hash_at(p + 1));
      std::memcpy(seq.slot() + p % 64 * 4, &word, 4);
    }
    return seq.advance(std::span(tokens_).subspan(static_cast<size_t>(past), static_cast<size_t>(n)));
  }

  /// All that is left, in chunks; empty text when all went well.
  std::string finish(int64_t chunk = 512) {
    while (left() > 0) {
      if (Status s = step(std::min(chunk, left())); !s) return s.error().text();
    }
    return verify() ? "" : "a reader saw what it must not see";
  }

  void flip_results() { flip_ = 1; }  // from now on this kernel computes something else

 private:
  static constexpr int64_t kSlot = -1;  // in place of a block: the registers in the slot

  /// In the slot: the ring, then the registers of each recurrent group.
  size_t registers_begin(size_t first_group) const {
    size_t at = model_->slot_bytes;
    for (size_t g = first_group; g < model_->groups.size(); g++)
      if (model_->groups[g].kind == StateKind::kRecurrent) at -= page_bytes(model_->groups[g], model_->block_size);
    return at;
  }
  bool has_ring() const { return registers_begin(0) > 0; }
  std::byte* row(size_t g, int64_t block, int64_t r, int layer) const {
    std::byte* page = block == kSlot ? seq.slot() + registers_begin(g) : seq.pages()[g][block];
    if (page == nullptr) return nullptr;
    const RowLayout l = layout_of(model_->groups[g], model_->block_size);
    return page + static_cast<size_t>(layer) * l.layer_stride_bytes + static_cast<size_t>(r % l.rows_per_page) * l.row_stride_bytes;
  }
  uint32_t word(size_t g, int layer, int64_t r, int e, uint64_t h) const {
    return static_cast<uint32_t>(mix(mix(g * 64 + static_cast<size_t>(layer), static_cast<uint64_t>(r * 8 + e)), h)) & 0x3FFFFFFFu;
  }
  bool check(size_t g, int64_t block, int64_t r, int64_t n) const {
    const StateSpec& s = model_->groups[g];
    for (int l = 0; l < s.n_layers; l++) {
      const std::byte* at = row(g, block, r, l);
      if (at == nullptr) return false;
      for (int e = 0; e < s.row_elems; e++) {
        uint32_t v = 0;
        std::memcpy(&v, at + static_cast<size_t>(e) * 4, 4);
        if (v != word(g, l, r, e, hash_at(n)) && flip_ == 0) return false;
      }
    }
    return true;
  }
  void write(size_t g, int64_t block, int64_t r, int64_t n) {
    const StateSpec& s = model_->groups[g];
    for (int l = 0; l < s.n_layers; l++) {
      std::byte* at = row(g, block, r, l);
      if (at == nullptr) {
        ADD_FAILURE() << "no page to write: group " << s.name << " block " << block;
        return;
      }
      for (int e = 0; e < s.row_elems; e++) {
        const uint32_t v = word(g, l, r, e, hash_at(n)) ^ flip_;
        std::memcpy(at + static_cast<size_t>(e) * 4, &v, 4);
      }
    }
  }

  const ModelState* model_;

 public:
  Sequence seq;

 private:
  std::vector<int32_t> tokens_;
  std::vector<uint64_t> hash_;  // [n]: of the first n tokens
  uint32_t flip_ = 0;
};

/// Admits; fails the test when that is not possible at once.
inline std::optional<Reader> start(StateManager& m, const AdmitRequest& r) {
  auto a = m.admit(r);
  if (!a) {
    ADD_FAILURE() << a.error().text();
    return std::nullopt;
  }
  if (!a->sequence) {
    ADD_FAILURE() << "told to wait";
    return std::nullopt;
  }
  return Reader(m.config().model, std::move(*a->sequence), std::vector<int32_t>(r.tokens.begin(), r.tokens.end()));
}

/// Runs a prompt to its end; returns its match.
inline Match serve(StateManager& m, const AdmitRequest& r, int64_t chunk = 512) {
  auto run = start(m, r);
  if (!run) return {};
  const Match match = run->seq.match();
  EXPECT_EQ(run->finish(chunk), "");
  return match;
}

}  // namespace carrel::sim
