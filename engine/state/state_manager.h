// The state manager: which parts of which prefixes exist, who may read them, and whether a prefix hit is complete.
//
// Allocation and matching are two actions over one table, run as one transaction (`admit`). A hit counts only when every group is
// restorable at the same block boundary; everything that shortened a match is reported as a veto. Words, checks and invariants:
// docs/state.md.
//
// Threads: all methods are thread-safe (one mutex, Impl::mu); a Sequence is used by one thread at a time (the engine's) and ends before its
// manager. Page memory is owned here; kernels borrow it through Sequence for the length of a step. Errors: kExhausted with numbers when
// space is short.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/error.h"
#include "base/hash.h"
#include "engine/state/block_key.h"
#include "engine/state/spec.h"
#include "storage/extent.h"

namespace carrel {

class ExtentStore;
struct ExtentVerify;

/// Why a nominal match was not used whole.
struct Veto {
  StateKind kind = StateKind::kWindow;
  std::string group;
  int64_t position = 0;  // the longest resume point that this group refused
  /// Of the state it lacks: "absent", "evicted", "quarantined"; a failed check: "half_block", "layout", "epoch", "alignment".
  std::string residency;
};

struct StateConfig {
  ModelState model;
  Digest model_digest{};  // weights + tokenizer + template + rope + dtypes
  std::string numerics_id;
  std::string kernel_layout_id;  // page_layout_id of the graph that will read the pages (check 2)
  size_t budget_bytes = 0;       // all pages and slots
  size_t host_budget_bytes = 0;  // copies of what leaves them; 0: no host tier
  ExtentStore* disk = nullptr;   // the disk tier, borrowed; null: there is none
  Env* env = Env::real();        // clocks of transfers, salts of extents
  /// Threads that restore; one more writes behind. 0 (tests, drills): a restore runs in the call that wants it, and copies are made in host
  /// memory when something is evicted.
  int transfer_threads = 0;
  /// Key that a namespace's extents are sealed with; null: it has none (any more) and nothing leaves the device. Empty: not encrypted.
  std::function<std::shared_ptr<const ExtentKey>(const std::string& namespace_id)> seal_key;
  double offload_threshold = 0.85;     // of the budget in use, above which what would be evicted next is copied, too
  int64_t write_delay_ms = 2000;       // from publication to the copy
  int64_t restore_deadline_ms = 5000;  // then it is computed again
  int max_sequences = 256;             // live at a time
  int64_t max_step_tokens = 512;       // the most that one reserve() will ask for: prefill chunk
  int64_t max_sequence_tokens = 0;     // longest prompt + answer; 0: unknown
  int64_t max_ghosts = 65536;          // evicted blocks whose keys are remembered
  double recurrent_share = 0.5;        // of the budget, that the recurrent records of one namespace may take
  bool reuse = true;                   // prefix_reuse.enabled
  bool poison = false;                 // fill free pages with NaN (tests)
  bool audit = false;                  // assert the four invariants after every transition (tests, debug)
  std::string label = "state";         // begins its log lines: a drill's faults are not the server's
  BlockKeyFn key_fn;                   // tests: another key function; empty: block_key
};

struct AdmitRequest {
  std::span<const int32_t> tokens;      // the whole prompt
  Digest namespace_secret{};            // of the authenticated tenant
  std::string namespace_id;             // for counters and quotas
  int64_t max_new_tokens = 0;           // reserved in the plan: a request that can never fit is refused at once
  bool reuse = true;                    // a request can only narrow it
  bool store = true;                    // false: nothing is published
  bool verify = false;                  // with reuse and store off: digests are compared, of registers at `boundaries` too
  std::span<const int64_t> boundaries;  // positions in the prompt where a message ends, ascending: registers are kept before them
  BlockKeys* keys = nullptr;            // caller's, kept beside tokens and namespace: a request that is admitted again is not hashed again
};

struct Match {
  int64_t nominal = 0;     // tokens whose block keys are known, at most ⌊(len−1)/B⌋·B
  int64_t effective = 0;   // tokens whose computation is skipped
  int64_t restored = 0;    // of these, in blocks of which something came from a lower tier
  bool from_disk = false;  // and of that, something from disk
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
  /// Takes pages for the next n tokens (at most max_step_tokens). kExhausted: no space now (nothing was taken). Idempotent.
  Status reserve(int64_t n_tokens);
  /// For SeqStep::pages: [group][block], valid until the next reserve/advance. Null: the sequence holds no such page and no op may want it.
  std::span<std::byte* const* const> pages() const;
  std::byte* slot() const;  // null for models without rings and registers
  /// For SeqStep::restored: the next step is the first one after a hit.
  bool restored() const;
  /// The step has written these tokens, for which reserve succeeded: seals blocks that are now full, digests them, publishes them (unless
  /// store is off), keeps
  /// the registers of state points, drops register pages left behind. Recomputed published blocks are compared by digest and the published
  /// record adopted. kInvalidArgument: tokens differ from the prompt, or were not reserved; nothing has changed then.
  Status advance(std::span<const int32_t> tokens);

  struct Impl;  // manager_impl.h

 private:
  friend class StateManager;
  explicit Sequence(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// What admit says when it does not fail.
struct Admission {
  std::optional<Sequence> sequence;  // empty: wait; another live sequence computes the next block of this prefix, or it is being restored
};

struct StateStats {
  size_t budget_bytes = 0, used_bytes = 0, free_bytes = 0;  // used: pages and slots in use, evictable ones included
  size_t slot_bytes = 0;                                    // of all live sequences
  struct Group {
    std::string name;
    StateKind kind = StateKind::kCompressedKv;
    size_t page_bytes = 0;
    int64_t n_pages = 0;     // in use: published and private
    int64_t n_resident = 0;  // published records
    int64_t n_leased = 0;    // of these (and of records that left the index), under lease
  };
  std::vector<Group> groups;
  int64_t n_blocks = 0, n_ghosts = 0, n_sequences = 0;
  uint32_t epoch = 0;
  int64_t ladder_tokens = 0;                       // distance of the rungs at which registers are kept; 0: no recurrent group
  uint64_t admitted = 0, waited = 0, refused = 0;  // refused: never fits or not now; waited: answers "wait", one request may get many
  uint64_t rolled_back = 0;                        // admissions whose pins were given back because an allocation failed
  uint64_t prompt_tokens = 0, nominal_tokens = 0, effective_tokens = 0;
  uint64_t ghost_tokens = 0;                                                 // would have matched, had they not been evicted
  uint64_t published = 0, adopted = 0, filled = 0, evicted = 0, purged = 0;  // records; filled: published into a block that had lost them
  uint64_t captured = 0, captures_skipped = 0;  // state points of recurrent groups: kept; not, for want of space
  uint64_t compared = 0, digest_mismatches = 0, quarantined = 0, key_collisions = 0;
  size_t host_budget_bytes = 0, host_bytes = 0;
  int64_t n_host_extents = 0;                               // kept in host memory
  uint64_t offloaded = 0, restored = 0, host_evicted = 0;   // extents kept in host memory; records brought back; extents given up
  uint64_t restored_tokens = 0;                             // of hits
  uint64_t restored_from_disk = 0;                          // of the records
  uint64_t restores_failed = 0, restore_failed_tokens = 0;  // tried, and computed again or matched shorter instead
  uint64_t restores_declined = 0;                           // computing again was quicker, by measured rates
  double restore_seconds[2] = {};                           // from the plan to the pages: host memory, disk
  uint64_t restore_bytes[2] = {};
  size_t disk_budget_bytes = 0, disk_bytes = 0;  // of the disk tier, other models' extents included
  int64_t n_disk_extents = 0;
  std::string disk_alert;  // why the last write to it failed
  uint64_t stored_on_disk = 0, stored_bytes = 0, disk_evicted = 0, disk_write_failures = 0;
  uint64_t dropped_uncopied = 0;                           // evicted before a copy was made, although worth keeping
  int64_t n_write_queue = 0;                               // extents that are due
  uint64_t restore_failures[std::size(kStateKinds)] = {};  // records whose copy could not be used
  uint64_t vetoes[std::size(kStateKinds)] = {};            // requests whose match this kind shortened
  uint64_t check_failures[4] = {};                         // whole blocks, layout, intersection (epoch), alignment
  bool inert_alarm = false;  // 100 eligible requests in a row with nominal > 0 and effective = 0; ends with the next hit
};

/// All that is known of one namespace, parents before children: what another process of the same model can go on from.
struct StateSnapshot {
  struct Block {
    int64_t parent = -1;  // index in `blocks`
    std::vector<int32_t> tokens;
    std::vector<std::shared_ptr<const AlignedBytes>> extents;  // at most one per set, sealed as in any tier
  };
  std::vector<Block> blocks;
};

/// What a drill or a test does to one published record.
/// kFlipSign: of the first element of every row, so that whoever reads it answers something else. The last three: the record is moved to
/// host memory; its part of the copy there is dropped; a bit of that part is flipped.
enum class Damage { kEvict, kHalfBlock, kLayout, kEpoch, kMisalign, kFlipBit, kFlipSign, kOffload, kDropHost, kFlipHostBit };

class StateManager {
 public:
  /// kInvalidArgument: layouts that differ or are impossible, a budget that holds no sequence at all.
  static Result<std::unique_ptr<StateManager>> create(StateConfig config);
  ~StateManager();

  /// One transaction: match, pin, allocate the first pages, commit; any failure rolls back everything.
  /// kInvalidArgument: can never fit (with the numbers); kExhausted: not now.
  /// An empty Admission: wait and call again, at the latest after the next step.
  Result<Admission> admit(const AdmitRequest& request);
  /// Matching alone, nothing taken (explain).
  Match explain(const AdmitRequest& request) const;

  /// What computing took, for the choice between restoring and computing again.
  void note_computed(int64_t n_tokens, int64_t ns);
  /// Removes extents from disk that were not used for their time to live; finishes what earlier removals left. About once a minute.
  void sweep_disk();
  /// Called, from any thread, when a request that waits for a restore should be tried again. Set before the first admission.
  void on_restored(std::function<void()> wake);
  /// Forgets every block of a namespace; records that a live sequence leases are unpublished at once and freed on release, and its live
  /// sequences publish nothing more. Returns the number of records, in whatever tier they were.
  int64_t purge(const std::string& namespace_id);
  /// A changed layout or model: raises the epoch; older records are gone, sequences of the older epoch publish nothing more.
  void bump_epoch();
  /// Changes with every purge of the namespace and every epoch: what was kept elsewhere of its tokens is void then.
  uint64_t generation(const std::string& namespace_id) const;
  /// Takes everything that is known of the first n_tokens of a prompt out of use, in every tier. Returns the number of records.
  int64_t quarantine_prefix(const AdmitRequest& request, int64_t n_tokens);
  /// Computes the digest of every published record again; one that differs is quarantined. Returns how many. Holds the lock throughout.
  int64_t verify();
  /// Reads, opens and checks every extent on disk, other models' too; a bad one is quarantined. Takes as long as that takes; requests go on.
  /// Empty without a disk tier.
  std::optional<ExtentVerify> verify_disk();
  /// Copies everything that the request's namespace has, whatever tier it is in.
  StateSnapshot snapshot(const AdmitRequest& of) const;
  /// Takes a snapshot's blocks into host memory, as far as they are what this model, tenant, arithmetic and layout would have made (by key
  /// and layout; rows are verified when they are used) and fit the budget. Returns how many.
  int64_t adopt(const AdmitRequest& of, const StateSnapshot& snapshot);
  /// What a plan of the graph must have been made for to read these states.
  LayoutStamp layout_stamp() const;
  StateStats stats() const;
  /// Asserts I1-I4 over the whole table; the text of the first breach, or empty.
  std::string check_invariants() const;
  /// What makes hits impossible or rare with this model and configuration; also logged by create.
  const std::vector<std::string>& warnings() const;

  // For tests and drills: damages or evicts one published record of the prefix. kNotFound; kUnavailable: leased.
  Status damage_for_test(const AdmitRequest& prefix, int64_t block, const std::string& group, Damage damage);
  Status evict_for_test(const AdmitRequest& prefix, int64_t block, const std::string& group) {
    return damage_for_test(prefix, block, group, Damage::kEvict);
  }
  /// Evicts what is worth least. False: everything is leased or nothing is there.
  bool evict_one_for_test();
  const StateConfig& config() const;

  struct Impl;  // manager_impl.h

 private:
  explicit StateManager(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace carrel
