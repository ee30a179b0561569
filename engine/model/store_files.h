// Steps that import, loading and upkeep of the store share; private to this folder.
#pragma once
#include <memory>
#include <span>
#include <string>

#include "base/env.h"
#include "engine/model/store.h"
#include "engine/model/store_manifest.h"

namespace carrel {

/// Reads the manifest of an entry and checks it against the folder's name.
Result<Manifest> read_entry_manifest(Env* env, const std::string& entry_dir);
StoreEntry describe_entry(Env* env, const std::string& entry_dir, const Manifest& manifest);
/// A new file, durable except for its name.
Status write_new_file(Env* env, const std::string& path, std::span<const std::byte> bytes);
/// "<store>/<kind>-<wall ms>-<random>": kinds tmp and trash, which no list shows.
std::string hidden_path(Env* env, const std::string& store_dir, std::string_view kind);
/// Deletes hidden folders that a crash left more than a day ago.
void sweep_store(Env* env, const std::string& store_dir);
/// Renames an entry out of sight and deletes it.
Status discard(Env* env, const std::string& store_dir, const std::string& path);

/// Opens weights.bin and checks size and magic.
Result<std::unique_ptr<File>> open_weights_file(Env* env, const std::string& entry_dir, const Manifest& manifest);
/// SHA-256 of a piece against the manifest; kCorrupt names tensor, file and offset.
Status check_piece(const StoredPiece& piece, const Digest& is, const std::string& entry_dir);
/// All bytes of `out` from the offset of the piece on.
Status read_piece_bytes(File* file, const StoredPiece& piece, uint64_t skip, std::span<std::byte> out, const std::string& entry_dir);
Result<std::string> read_text(Env* env, const std::string& entry_dir, const StoredText& text);

}  // namespace carrel
