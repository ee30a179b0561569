// Inside of the state manager, shared by its three sources: state_manager.cpp (admit, match, purge), sequence.cpp (reserve, advance,
// release) and audit.cpp (the four invariants). Nobody else includes this.
#pragma once
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>

#include "engine/state/match.h"
#include "engine/state/page_pool.h"
#include "engine/state/prefix_index.h"
#include "engine/state/state_manager.h"

namespace carrel {

/// What one sequence holds of one (group, block): nothing, a private page, or a lease.
struct Cell {
  RecordState state = RecordState::kEmpty;  // writing or sealed: private; published: leased
  PageHandle page;
  Lease lease;
  Digest digest{};  // once sealed
  std::byte* data() const { return page ? page.data() : lease ? lease.record()->data : nullptr; }
};

struct Sequence::Impl {
  StateManager::Impl* manager = nullptr;
  uint64_t id = 0;
  int ns = 0;
  Digest secret{};
  uint32_t epoch = 0;
  bool reuse = true;
  bool verifying = false;       // publishes nothing, but its registers are compared
  bool storing = true;          // may publish; ends for good at a purge, an epoch, a key collision, a digest mismatch
  std::vector<int32_t> tokens;  // the prompt, then what advance added
  size_t n_prompt = 0;
  BlockKeys keys;  // of the prompt's full blocks, longer as blocks fill
  int64_t n_past = 0;
  Match match;
  std::vector<int64_t> likely_points;    // in blocks: where later requests probably resume
  std::vector<int64_t> message_points;   // in blocks: the last boundary before each end of a message; the first one ends the system prompt
  std::vector<int64_t> announced;        // blocks that others may wait for, descending
  std::vector<std::vector<Cell>> cells;  // [group][block]; of recurrent groups: only where registers are being kept
  std::vector<std::vector<std::byte*>> table;  // [group][block]
  std::vector<std::byte* const*> table_rows;   // [group]
  std::vector<int64_t> first_held;             // [group]: blocks before it were left behind
  std::vector<int64_t> n_held;                 // [group]: pages, private or leased
  PageHandle slot;
  bool restored = false;  // the registers at n_past are those of the leased page, not in the slot yet
  /// Registers at the newest boundary that is no state point yet: it becomes one if the sequence ends here.
  struct Newest {
    int64_t block = -1;
    std::vector<Cell> cells;  // [recurrent group]
  } newest;

  ~Impl();
  void size_table(int64_t n_blocks);
  void set_cell(size_t group, int64_t block, Cell cell);
};

struct StateManager::Impl {
  explicit Impl(StateConfig c);

  const StateConfig config;
  const int block_size;
  const Digest context;  // of block keys
  const std::vector<RowLayout> layouts;
  const std::vector<size_t> recurrent;  // groups of this kind
  const int64_t ladder_blocks;          // distance of rungs; 0: the model has no recurrent group
  std::vector<std::string> warnings;

  mutable std::mutex mu;  // guards everything below; Sequence::Impl too, but for what only its own thread changes
  PagePool pool;
  PrefixIndex index;
  uint32_t layout = 1;  // number of the page layout of this process; records of another one carry another number
  uint32_t epoch = 1;
  uint64_t tick = 0;  // admissions so far: the clock of decay
  std::map<std::pair<std::string, Digest>, int> namespaces;
  std::map<std::string, uint64_t> purges;                 // of each namespace
  std::unordered_map<Digest, int, DigestHash> announced;  // blocks that live sequences are computing → how many of them
  std::set<Sequence::Impl*> live;
  uint64_t next_sequence = 1;
  StateStats counters;
  int inert_streak = 0;

  // state_manager.cpp
  int64_t n_groups() const { return static_cast<int64_t>(config.model.groups.size()); }
  const StateSpec& spec(int64_t g) const { return config.model.groups[static_cast<size_t>(g)]; }
  RecordRule rule() const { return {layouts, layout, epoch}; }
  int64_t matchable_blocks(size_t n_tokens) const { return n_tokens == 0 ? 0 : (static_cast<int64_t>(n_tokens) - 1) / block_size; }
  int64_t peak_pages(int64_t group, int64_t n_tokens) const;
  size_t needed_bytes(int64_t n_tokens) const;
  size_t outstanding_bytes(const Sequence::Impl& seq) const;
  Status check_room(const Sequence::Impl& seq) const;
  Status check_fits(const AdmitRequest& request) const;
  void fill_keys(const AdmitRequest& request, BlockKeys& keys, size_t n_blocks) const;
  std::optional<int> find_namespace(const AdmitRequest& request) const;
  int intern_namespace(const AdmitRequest& request);
  Match match(const Walk& walk, std::vector<Record*>& failed) const;
  void quarantine(Record* record, Check failed);
  Result<Admission> admit_locked(const AdmitRequest& request, const BlockKeys& keys);
  /// Block of a group that a resume at n_blocks reads first; it reads all up to n_blocks.
  int64_t first_read(int64_t group, int64_t n_blocks) const;
  bool verify_host(const Walk& walk, const Match& match);
  Status restore(Sequence::Impl& seq, const Walk& walk, int64_t n_blocks);
  void pin(Sequence::Impl& seq, const Walk& walk, int64_t n_blocks);
  void count_match(const AdmitRequest& request, const Match& match, const Walk& walk, int64_t max_blocks);
  void announce(Sequence::Impl& seq, int64_t from, int64_t to);
  bool computed_by_another(const BlockKeys& keys, int64_t hit, int64_t max_blocks) const;

  // sequence.cpp
  /// A page of the group, or of slots (kind of the pool), by evicting what is worth least; empty: everything is in use.
  PageHandle take(int kind);
  Status reserve_locked(Sequence::Impl& seq, int64_t n_tokens);
  /// Registers at n_blocks are to be kept for good.
  bool is_point(const Sequence::Impl& seq, int64_t n_blocks) const;
  void plan_captures(Sequence::Impl& seq, int64_t n_tokens);
  void keep_newest(Sequence::Impl& seq, int64_t block);
  void drop_newest(Sequence::Impl& seq);
  void publish_newest(Sequence::Impl& seq);
  Record* publish_cell(Sequence::Impl& seq, Block* node, size_t group, Cell& cell);
  double worth(const Sequence::Impl& seq, int64_t n_blocks) const;
  void trim_recurrent(int ns);
  void seal(Sequence::Impl& seq, int64_t block);
  void publish(Sequence::Impl& seq, int64_t block);
  Block* ensure_chain(Sequence::Impl& seq, int64_t block);
  Block* find_chain(const Sequence::Impl& seq, int64_t block) const;
  bool same_in_host(Block* node, int group, const Digest& digest);
  bool settle_known(Sequence::Impl& seq, int64_t block, Block* node);
  void withdraw(Sequence::Impl& seq, int64_t up_to);
  void stop_storing(Sequence::Impl& seq);
  void leave_behind(Sequence::Impl& seq);
  int64_t first_needed(int64_t group, int64_t n_past) const;
  void release(Sequence::Impl& seq);

  // audit.cpp
  std::string breach() const;
  void audit() const;
};

}  // namespace carrel
