// The state manager: which parts of which prefixes exist, who may read them, and whether a prefix hit is complete.
//
// Allocation and matching are two actions over one table, run as one transaction (`admit`). A hit counts only when every group is restorable
// at the same block boundary; everything that shortened a match is reported as a veto. Words, checks and invariants: docs/state.md.
//
// Threads: all methods are thread-safe (one mutex, `mu_`); Sequence objects are used by one thread at a time (the engine's). Page memory
// is owned here; kernels borrow it through Sequence for the length of a step. Errors: kExhausted with numbers when space is short.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "engine/state/spec.h"

namespace carrel {

/// Why a nominal match was not used whole.
struct Veto {
  StateKind kind = StateKind::kWindow;
  std::string group;
  int64_t position = 0;     // the resume point refused
  std::string residency;    // "evicted", "absent", "in_flight", "layout", "alignment"
};

struct StateConfig {
  ModelState model;
  Digest model_digest{};     // weights + tokenizer + template + rope + dtypes
  std::string numerics_id;
  size_t budget_bytes = 0;   // all pages and slots
  int max_sequences = 256;   // slots
  bool reuse = true;         // prefix_reuse.enabled
  bool poison = false;       // fill free pages with NaN (tests)
  bool audit = false;        // assert the four invariants after every transition (tests, debug)
};

struct AdmitRequest {
  std::span<const int32_t> tokens;   // the whole prompt
  Digest namespace_secret{};         // of the authenticated tenant
  std::string namespace_id;          // for counters and quotas
  int64_t max_new_tokens = 0;        // reserved in the plan: a request that can never fit is refused at once
  bool reuse = true;                 // a request can only narrow it
  bool store = true;                 // false: nothing is published
};

struct Match {
  int64_t nominal = 0;    // tokens whose block keys are known, at most ⌊(len−1)/B⌋·B
  int64_t effective = 0;  // tokens whose computation is skipped
  std::vector<Veto> vetoes;
};

class StateManager;

/// Move-only handle of one live sequence: pages under lease, slot, tokens. Dropping it is the only release.
class Sequence {
 public:
  Sequence(Sequence&&) noexcept;
  Sequence& operator=(Sequence&&) noexcept;
  ~Sequence();

  const Match& match() const;
  int64_t n_past() const;  // tokens in the state
  /// Takes pages for the next n tokens. kExhausted: no space now (nothing was taken). Idempotent.
  Status reserve(int64_t n_tokens);
  /// For SeqStep::pages: [group][block], valid until the next reserve/advance.
  std::span<std::byte* const* const> pages() const;
  std::byte* slot() const;
  /// The step has written these tokens: seals blocks that are now full, digests them, publishes them (unless store is off), drops window
  /// pages left behind. Recomputed published blocks are compared by digest and the published record adopted.
  Status advance(std::span<const int32_t> tokens);

 private:
  friend class StateManager;
  struct Impl;
  explicit Sequence(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// What admit says when it does not fail.
struct Admission {
  std::optional<Sequence> sequence;  // empty: wait, another live sequence is computing the next block of this prefix
};

struct StateStats {
  size_t budget_bytes = 0, used_bytes = 0, free_bytes = 0;
  struct Group {
    std::string name;
    StateKind kind;
    size_t page_bytes = 0;
    int64_t n_resident = 0, n_leased = 0;
  };
  std::vector<Group> groups;
  int64_t n_blocks = 0, n_ghosts = 0, n_sequences = 0;
  uint64_t admitted = 0, waited = 0, refused = 0;
  uint64_t nominal_tokens = 0, effective_tokens = 0, prompt_tokens = 0;
  uint64_t published = 0, adopted = 0, evicted = 0, digest_mismatches = 0;
  uint64_t vetoes[std::size(kStateKinds)] = {};
  uint64_t check_failures[4] = {};  // whole blocks, layout, intersection, alignment
  bool inert_alarm = false;         // 100 eligible requests with nominal > 0 and effective = 0
};

class StateManager {
 public:
  static Result<std::unique_ptr<StateManager>> create(StateConfig config);
  ~StateManager();

  /// One transaction: match, pin, allocate the first pages, commit; any failure rolls back everything.
  /// kInvalidArgument: can never fit (with the numbers); kExhausted: not now.
  Result<Admission> admit(const AdmitRequest& request);
  /// Matching alone, nothing taken (explain).
  Match explain(const AdmitRequest& request) const;

  /// Drops every record of a namespace that no live sequence leases; leased ones are unpublished at once and freed on release.
  int64_t purge(const std::string& namespace_id);
  /// A changed layout or model: raises the epoch; older records become invisible.
  void bump_epoch();
  StateStats stats() const;
  /// Asserts I1-I4 over the whole table; the text of the first breach, or empty.
  std::string check_invariants() const;

  // For tests and drills: damages or evicts one record.
  Status evict_for_test(const AdmitRequest& prefix, int64_t block, const std::string& group);
  const StateConfig& config() const;

 private:
  friend class Sequence;
  struct Impl;
  explicit StateManager(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace carrel
