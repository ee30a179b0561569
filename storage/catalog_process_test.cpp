// The catalog between processes: a command beside a server, and processes that are killed while they write.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "storage/catalog.h"

namespace carrel {
namespace {

/// A child process and a pipe each way. It is made before this process opens the catalog: connections do not survive a fork.
class Child {
 public:
  explicit Child(const std::function<void(Child&)>& body) {
    int down[2], up[2];
    if (::pipe(down) != 0 || ::pipe(up) != 0) abort();
    pid_ = ::fork();
    const bool child = pid_ == 0;
    in_ = child ? down[0] : up[0];
    out_ = child ? up[1] : down[1];
    ::close(child ? down[1] : down[0]);
    ::close(child ? up[0] : up[1]);
    if (!child) return;
    body(*this);
    ::_exit(0);
  }
  ~Child() {
    ::close(in_);
    ::close(out_);
    wait();
  }
  void say(std::string line) {
    line += '\n';
    if (::write(out_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) ::_exit(9);
  }
  /// Empty: the other side is gone.
  std::string hear() {
    std::string line;
    for (char c; ::read(in_, &c, 1) == 1;) {
      if (c == '\n') return line;
      line += c;
    }
    return {};
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    wait();
  }
  int wait() {
    int status = 0;
    if (pid_ > 0) ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }

 private:
  pid_t pid_;
  int in_, out_;
};

std::string fresh_folder(const char* name) {
  const std::string path = testing::TempDir() + "carrel_" + name + std::to_string(::getpid());
  EXPECT_TRUE(Env::real()->remove_all(path));
  return path;
}

TEST(CatalogProcess, ARevocationByACommandHoldsAtTheNextRequest) {
  const std::string dir = fresh_folder("command");
  Child command([&](Child& parent) {
    parent.hear();
    auto c = Catalog::open(Env::real(), dir, CatalogMode::kReadWrite);
    if (!c) ::_exit(1);
    while (!parent.hear().empty()) {
      const auto key = (*c)->create_key({}, "cli");
      if (!key) ::_exit(2);
      parent.say(key->key);
      if (parent.hear().empty() || !(*c)->revoke_key(key->info.id, "cli")) ::_exit(3);
      parent.say("revoked");
    }
  });
  auto server = Catalog::open(Env::real(), dir, CatalogMode::kReadWrite).value();
  const CreatedKey own = server->create_key({}, "t").value();
  command.say("open");
  for (int i = 0; i < 20; i++) {
    command.say("create");
    const std::string key = command.hear();
    ASSERT_FALSE(key.empty());
    const auto info = server->authenticate(key);
    ASSERT_TRUE(info) << info.error().text();
    server->add_usage(info->id, "demo", {1, 1, 0, 1});
    command.say("revoke");
    ASSERT_EQ(command.hear(), "revoked");
    EXPECT_FALSE(server->authenticate(key));
    EXPECT_FALSE(server->check_key(info->id));
    EXPECT_TRUE(server->authenticate(own.key));
  }
  EXPECT_TRUE(server->verify_audit());
  server.reset();
  (void)Env::real()->remove_all(dir);
}

TEST(CatalogProcess, TwoFirstStartsAgree) {
  for (int round = 0; round < 5; round++) {
    const std::string dir = fresh_folder("first");
    Child other([&](Child& parent) {
      parent.hear();
      const auto c = Catalog::open(Env::real(), dir, CatalogMode::kReadWrite);
      if (!c) parent.say("error " + c.error().text());
      const auto key = c ? (*c)->bootstrap_key("system") : fail(Code::kInternal, "");
      parent.say(key && *key ? (*key)->key : "none");
    });
    other.say("go");
    auto mine = Catalog::open(Env::real(), dir, CatalogMode::kReadWrite);
    ASSERT_TRUE(mine) << mine.error().text();
    const auto key = (*mine)->bootstrap_key("system").value();
    const std::string theirs = other.hear();
    EXPECT_NE(theirs == "none", key == std::nullopt) << "exactly one of them gets the first key; the other said: " << theirs;
    EXPECT_TRUE((*mine)->authenticate(key ? key->key : theirs));
    EXPECT_EQ((*mine)->tenants()->size(), 1u);
    mine->reset();
    (void)Env::real()->remove_all(dir);
  }
}

TEST(CatalogProcess, KilledWritersLoseNothingAcknowledged) {
  const std::string dir = fresh_folder("killed");
  std::vector<std::string> valid, revoked;
  for (int round = 0; round < 6; round++) {
    Child writer([&](Child& parent) {
      auto c = Catalog::open(Env::real(), dir, CatalogMode::kReadWrite);
      if (!c) ::_exit(1);
      for (int i = 0;; i++) {
        const auto key = (*c)->create_key({}, "t");
        if (!key) ::_exit(2);
        if (i % 3 != 0) {
          parent.say("+" + key->key);
        } else if ((*c)->revoke_key(key->info.id, "t")) {
          parent.say("-" + key->key);
        }
      }
    });
    const int n_lines = 5 + round * 7;
    for (int i = 0; i < n_lines; i++) {
      const std::string line = writer.hear();
      ASSERT_FALSE(line.empty());
      (line[0] == '+' ? valid : revoked).push_back(line.substr(1));
    }
    Env::real()->sleep_ms(round);
    writer.kill();
    auto c = Catalog::open(Env::real(), dir, CatalogMode::kReadWrite);
    ASSERT_TRUE(c) << c.error().text();
    for (const std::string& key : valid) EXPECT_TRUE((*c)->authenticate(key));
    for (const std::string& key : revoked) EXPECT_FALSE((*c)->authenticate(key));
    EXPECT_TRUE((*c)->verify_audit());
  }
  (void)Env::real()->remove_all(dir);
}

}  // namespace
}  // namespace carrel
