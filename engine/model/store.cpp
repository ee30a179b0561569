// Upkeep of the store: list, find, verify, remove, and the file steps that import and loading share.
#include "engine/model/store.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "engine/model/store_files.h"

namespace carrel {
namespace {

constexpr int64_t kStaleMs = 24 * 3600 * 1000;
constexpr uint64_t kMaxManifestBytes = uint64_t{1} << 30;
constexpr size_t kReadBytes = 4 << 20;

bool is_digest(const std::string& s) {
  return s.size() == 64 && s.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string last_part(const std::string& path) {
  return path.substr(path.find_last_of('/') + 1);
}

Result<Digest> hash_piece(File* file, const StoredPiece& p, const std::string& entry_dir, Bytes& buffer) {
  Sha256 sha;
  for (uint64_t done = 0; done < p.bytes;) {
    const auto part = std::span(buffer).first(std::min<uint64_t>(buffer.size(), p.bytes - done));
    CARREL_TRY(read_piece_bytes(file, p, done, part, entry_dir));
    sha.update(part);
    done += part.size();
  }
  return sha.finish();
}

}  // namespace

Result<Manifest> read_entry_manifest(Env* env, const std::string& entry_dir) {
  const std::string path = entry_dir + "/" + std::string(kManifestFile);
  CARREL_ASSIGN(const std::string text, read_file(env, path, kMaxManifestBytes));
  if (to_hex(sha256(text)) != last_part(entry_dir))
    return fail(Code::kCorrupt, "does not have the digest that its folder is named by; remove the entry and import the model again", path);
  return decode_manifest(text, path);
}

StoreEntry describe_entry(Env* env, const std::string& entry_dir, const Manifest& m) {
  const auto text = read_file(env, entry_dir + "/" + std::string(kNoteFile), 1 << 20);
  const EntryNote note = text ? decode_note(*text) : EntryNote();
  return {.digest = last_part(entry_dir),
          .path = entry_dir,
          .name = note.name,
          .source = note.source,
          .format = m.format,
          .n_tensors = static_cast<int64_t>(m.pieces.size()),
          .packed_bytes = static_cast<int64_t>(m.weights_bytes),
          .file_bytes = m.file_bytes,
          .imported_ms = note.imported_ms,
          .problem = {}};
}

Status write_new_file(Env* env, const std::string& path, std::span<const std::byte> bytes) {
  CARREL_ASSIGN(const auto file, env->open(path, Open::kCreateNew));
  CARREL_TRY(file->write_at(0, bytes));
  return file->sync();
}

std::string hidden_path(Env* env, const std::string& store_dir, std::string_view kind) {
  std::array<std::byte, 8> r;
  env->random(r);
  return store_dir + "/" + std::string(kind) + "-" + std::to_string(env->wall_ms()) + "-" + to_hex(r);
}

void sweep_store(Env* env, const std::string& store_dir) {
  const auto names = env->list(store_dir);
  if (!names) return;  // no store yet; import will say what is wrong if it is something else
  for (const std::string& name : *names) {
    const size_t prefix = name.starts_with("tmp-") ? 4 : name.starts_with("trash-") ? 6 : 0;
    int64_t made_ms = 0;
    if (prefix == 0 || std::from_chars(name.data() + prefix, name.data() + name.size(), made_ms).ec != std::errc()) continue;
    if (env->wall_ms() - made_ms < kStaleMs) continue;  // another process may be at work on it
    (void)env->remove_all(store_dir + "/" + name);      // next time, then
  }
}

Status discard(Env* env, const std::string& store_dir, const std::string& path) {
  const std::string trash = hidden_path(env, store_dir, "trash");
  CARREL_TRY(env->rename(path, trash));
  CARREL_TRY(env->sync_dir(store_dir));
  return env->remove_all(trash);
}

Result<std::unique_ptr<File>> open_weights_file(Env* env, const std::string& entry_dir, const Manifest& m) {
  const std::string path = entry_dir + "/" + std::string(kWeightsFile);
  CARREL_ASSIGN(auto file, env->open(path, Open::kRead));
  CARREL_ASSIGN(const uint64_t size, file->size());
  if (size != m.weights_bytes)
    return fail(Code::kCorrupt,
                "is " + std::to_string(size) + " bytes long, not " + std::to_string(m.weights_bytes) + "; import the model again", path);
  std::array<std::byte, kWeightsMagic.size()> magic;
  CARREL_ASSIGN(const size_t n, file->read_at(0, magic));
  if (n != magic.size() || std::memcmp(magic.data(), kWeightsMagic.data(), n) != 0)
    return fail(Code::kCorrupt, "does not begin like a weights file; import the model again", path);
  return file;
}

Status check_piece(const StoredPiece& p, const Digest& is, const std::string& entry_dir) {
  if (is == p.sha256) return {};
  return fail(Code::kCorrupt,
              "tensor '" + p.tensor + "' is damaged: its " + std::to_string(p.bytes) + " bytes at byte " + std::to_string(p.offset) +
                  " do not have the SHA-256 of the import; import the model again",
              entry_dir + "/" + std::string(kWeightsFile));
}

Status read_piece_bytes(File* file, const StoredPiece& p, uint64_t skip, std::span<std::byte> out, const std::string& entry_dir) {
  CARREL_ASSIGN(const size_t n, file->read_at(p.offset + skip, out));
  if (n == out.size()) return {};
  return fail(Code::kCorrupt, "ends inside of tensor '" + p.tensor + "'; import the model again",
              entry_dir + "/" + std::string(kWeightsFile));
}

Result<std::string> read_text(Env* env, const std::string& entry_dir, const StoredText& t) {
  const std::string path = entry_dir + "/" + t.file;
  CARREL_ASSIGN(std::string text, read_file(env, path, std::max<uint64_t>(t.bytes, 1)));
  if (text.size() != t.bytes || sha256(text) != t.sha256)
    return fail(Code::kCorrupt, "is damaged: it does not have the SHA-256 of the import; import the model again", path);
  return text;
}

Result<std::vector<StoreEntry>> list_entries(Env* env, const std::string& store_dir) {
  std::vector<StoreEntry> out;
  if (!env->exists(store_dir)) return out;
  CARREL_ASSIGN(const auto names, env->list(store_dir));
  for (const std::string& name : names) {
    const std::string path = store_dir + "/" + name;
    if (!is_digest(name) || !env->is_dir(path)) continue;
    const auto manifest = read_entry_manifest(env, path);
    out.push_back(describe_entry(env, path, manifest ? *manifest : Manifest()));
    if (!manifest) out.back().problem = manifest.error().text();
  }
  std::ranges::sort(out, {}, [](const StoreEntry& e) { return std::pair(e.name, e.digest); });
  return out;
}

Result<StoreEntry> find_entry(Env* env, const std::string& store_dir, const std::string& wanted) {
  CARREL_ASSIGN(const auto entries, list_entries(env, store_dir));
  const StoreEntry* found = nullptr;
  for (const StoreEntry& e : entries) {
    if (e.name != wanted && (wanted.size() < 6 || !e.digest.starts_with(wanted))) continue;
    if (found != nullptr)
      return fail(Code::kInvalidArgument, "names several stored models; give the digest that `carrel model list` shows", wanted);
    found = &e;
  }
  if (found == nullptr) return fail(Code::kNotFound, "is not in the model store; `carrel model list` shows what is", wanted);
  return *found;
}

Status remove_entry(Env* env, const std::string& store_dir, const std::string& digest) {
  const std::string path = store_dir + "/" + digest;
  if (!is_digest(digest) || !env->is_dir(path))
    return fail(Code::kNotFound, "is not in the model store; `carrel model list` shows what is", digest);
  return discard(env, store_dir, path);
}

Result<VerifyReport> verify_entry(Env* env, const std::string& entry_dir, const ProgressFn& progress) {
  CARREL_ASSIGN(const Manifest m, read_entry_manifest(env, entry_dir));
  VerifyReport report;
  StoreProgress at;
  for (const StoredPiece& p : m.pieces) at.total_bytes += static_cast<int64_t>(p.bytes);
  for (const StoredText& t : m.texts) {
    if (const auto text = read_text(env, entry_dir, t); !text) report.damage.push_back({t.file, text.error().text()});
  }
  auto file = open_weights_file(env, entry_dir, m);
  if (!file) {
    report.damage.push_back({std::string(kWeightsFile), file.error().text()});
    return report;
  }
  Bytes buffer(kReadBytes);
  for (const StoredPiece& p : m.pieces) {
    const auto is = hash_piece(file->get(), p, entry_dir, buffer);
    const Status same = is ? check_piece(p, *is, entry_dir) : Status(std::unexpected(is.error()));
    if (!same) report.damage.push_back({p.tensor, same.error().text()});
    report.n_checked++;
    report.checked_bytes += static_cast<int64_t>(p.bytes);
    at.done_bytes = report.checked_bytes;
    at.tensor = p.tensor;
    if (progress && !progress(at)) return fail(Code::kCancelled, "verification was stopped", entry_dir);
  }
  return report;
}

}  // namespace carrel
