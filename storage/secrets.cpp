#include "storage/secrets.h"

#include <algorithm>
#include <cstring>

#include "base/seal.h"

namespace carrel {

Status Secrets::prepare() {
  CARREL_TRY(make_dirs_durable(env_, data_dir_ + "/namespaces"));
  return env_->set_mode(data_dir_ + "/namespaces", 0700);
}

Result<Digest> Secrets::load(const std::string& path) const {
  CARREL_ASSIGN(std::string content, read_file(env_, path, 4096));
  Digest secret;
  if (content.size() != secret.size())
    return fail(Code::kCorrupt, "a secret has 32 bytes, this file has " + std::to_string(content.size()), path);
  std::memcpy(secret.data(), content.data(), secret.size());
  wipe(std::as_writable_bytes(std::span(content)));
  return secret;
}

Result<Digest> Secrets::make(const std::string& path) const {
  Digest secret;
  env_->random(secret);
  CARREL_TRY(write_file_atomic(env_, path, {reinterpret_cast<const char*>(secret.data()), secret.size()}));
  return secret;
}

Status Secrets::destroy(const std::string& path) const {
  const auto file = env_->open(path, Open::kReadWrite);
  if (!file) return file.error().code == Code::kNotFound ? Status{} : std::unexpected(file.error());
  CARREL_ASSIGN(const uint64_t size, (*file)->size());
  Bytes noise(std::min<uint64_t>(size, 4096));
  env_->random(noise);
  CARREL_TRY((*file)->write_at(0, noise));
  CARREL_TRY((*file)->sync());
  if (const Status s = env_->remove(path); !s && s.error().code != Code::kNotFound) return s;
  return env_->sync_dir(folder_of(path));
}

Status Secrets::destroy_namespace(const std::string& id) const {
  const Status data = destroy(data_key_path(id)), secret = destroy(namespace_path(id));
  return data ? secret : data;
}

Result<std::vector<std::string>> Secrets::namespace_files() const {
  const std::string dir = data_dir_ + "/namespaces";
  CARREL_ASSIGN(std::vector<std::string> names, env_->list(dir));
  for (std::string& name : names) name = dir + "/" + name;
  return names;
}

}  // namespace carrel
