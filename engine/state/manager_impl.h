// Inside of the state manager, shared by the sources that are its methods (README.md lists them). Nobody else includes this.
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
#include "engine/state/transfers.h"

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
  std::vector<std::pair<std::string, Digest>> namespace_names;  // [number]
  std::set<std::string> namespace_ids;
  std::map<std::string, uint64_t> purges;                 // of each namespace
  std::unordered_map<Digest, int, DigestHash> announced;  // blocks that live sequences are computing → how many of them
  std::set<Sequence::Impl*> live;
  uint64_t next_sequence = 1;
  StateStats counters;
  int inert_streak = 0;

  // ---- lower tiers
  ExtentStore* const disk;
  const Digest extent_rows;  // ExtentIdentity::layout of this model and these kernels
  /// What the disk has of blocks that nobody asked for yet.
  struct OnDisk {
    uint64_t groups[std::size(kExtentSets)] = {};
  };
  std::unordered_map<Digest, OnDisk, DigestHash> on_disk;
  std::set<std::shared_ptr<Restore>> restores;      // planned, under way, ready
  std::deque<std::shared_ptr<Restore>> to_restore;  // planned, for the threads
  std::vector<std::shared_ptr<Restore>> ready;
  std::vector<ExtentId> doomed;  // on disk, and nobody wants them
  TransferRates rates;
  std::function<void()> wake;
  struct Due {
    Digest key{};
    ExtentSet set = ExtentSet::kLogs;
    int64_t due_ns = 0;
  };
  std::deque<Due> due_down;
  std::atomic<uint64_t> sealed{0};  // sequence of extents where no store gives one
  std::mutex writing;               // outside mu: one batch at a time
  std::unique_ptr<TransferThreads> restorers, writer;

  /// A copy to be made: nothing in it is the table's but the leases.
  struct Down {
    BlockToSeal what;
    uint64_t groups = 0, generation = 0;
    size_t n_bytes = 0;
    int ns = 0;
    uint32_t epoch = 0;
    bool replaces = false, valid = false;
    std::vector<Lease> leases;
    std::shared_ptr<const AlignedBytes> extent;
  };
  std::vector<Down> under_way;  // its leases are under mu; the rest is the writer's
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
  /// device_only: as if there were no lower tiers.
  Match match(const Walk& walk, std::vector<Record*>& failed, bool device_only = false) const;
  void quarantine(Record* record, Check failed);
  /// restore: what has to be done first, when the answer is an empty Admission.
  Result<Admission> admit_locked(const AdmitRequest& request, const BlockKeys& keys, std::shared_ptr<Restore>* restore);
  /// Block of a group that a resume at n_blocks reads first; it reads all up to n_blocks.
  int64_t first_read(int64_t group, int64_t n_blocks) const;
  // restore.cpp
  bool resident(const Walk& walk, int64_t n_blocks) const;
  BlockToOpen extent_of(const Block& block, ExtentSet set) const;
  ExtentId id_of(const Block& block, ExtentSet set) const;
  Result<std::shared_ptr<Restore>> plan_restore(const Walk& walk, int64_t n_blocks);
  void finish_restore(const std::shared_ptr<Restore>& r);
  void drop_restore(const std::shared_ptr<Restore>& r);
  void condemn(const Restore::Item& item, const Restore::Part& part);
  std::vector<std::shared_ptr<Restore>> take_ready(const Walk& walk, int64_t n_blocks, Match& match);
  Result<bool> bring_back(const Walk& walk, Match& match, std::shared_ptr<Restore>* restore);
  void drop_ready(const std::function<bool(const Restore&)>& which);
  void revoke_restores(int ns);
  bool being_restored(const Walk& walk, int64_t n_blocks) const;
  bool worth_restoring(const Walk& walk, int64_t n_blocks, int64_t resident_blocks) const;
  /// One planned restore, run and finished. False: none waits.
  bool restore_some();

  // table.cpp
  void flip_copy_for_test(Block* block, int group);
  std::vector<std::shared_ptr<const AlignedBytes>> seal_all(Block* block);
  bool adopt_extent(Block* block, const std::shared_ptr<const AlignedBytes>& extent);
  int64_t purge_disk(const std::string& namespace_id);

  // tiers.cpp
  void begin_tiers();
  void end_tiers();
  /// walk_chain, over what the disk has, too.
  Walk walk(const BlockKeys& keys, std::span<const int32_t> tokens, int ns, int64_t n_blocks);
  int64_t load_disk_rows();  // answers how many extents are usable
  void meet_disk(Block* block);
  /// A hit at the end of these blocks: the point is worth more, and so are the copies of what it stands on.
  void touch(const Walk& walk, int64_t n_blocks);

  // write_back.cpp
  bool offloading() const { return index.host_budget_bytes() > 0 || disk != nullptr; }
  std::shared_ptr<const ExtentKey> data_key(int ns) const;
  std::shared_ptr<const ExtentKey> data_key_unlocked(const std::string& id) const {
    return config.seal_key ? config.seal_key(id) : nullptr;
  }
  Down describe(Block* block, ExtentSet set);
  uint64_t device_groups(const Block& block, ExtentSet set) const;
  uint64_t purges_of(int ns) const;
  static void keep_digests(Block* block, const Down& d);
  bool copy_down_now(Block* block);
  void queue_down(Block* node, bool point);
  std::vector<Down> take_down(bool all);
  bool write_some(bool all);
  Block* still_wanted(const Down& d);
  void store(std::vector<Down>& batch);
  void make_disk_room(size_t n_bytes, const std::vector<Result<PutOutcome>>& why);
  void forget_on_disk(std::span<const ExtentId> ids);
  void erase_doomed();

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
  bool same_in_copy(Block* node, int group, const Digest& digest);
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
