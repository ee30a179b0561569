#include "engine/state/transfers.h"

#include <algorithm>
#include <chrono>

namespace carrel {

bool Restore::failed() const {
  return std::any_of(items.begin(), items.end(),
                     [](const Item& i) { return std::any_of(i.parts.begin(), i.parts.end(), [](const Part& p) { return !p.status; }); });
}

namespace {

void fail_all(Restore::Item& item, const Error& error) {
  for (Restore::Part& p : item.parts) p.status = std::unexpected(error);
}

void open_item(Restore::Item& item, const ModelState& model, std::span<const std::byte> bytes, const ExtentKey* key) {
  auto opener = BlockOpener::create(model, item.what, bytes, key);
  if (!opener) return fail_all(item, opener.error());
  for (Restore::Part& p : item.parts) {
    auto digest = opener->open(p.group, p.page.data());
    if (digest)
      p.digest = *digest;
    else
      p.status = std::unexpected(digest.error());
  }
}

}  // namespace

void run_restore(Restore& r, const ModelState& model, ExtentStore* disk) {
  std::vector<ExtentLease> leases;
  std::vector<size_t> of;
  for (size_t i = 0; i < r.items.size(); i++) {
    if (r.items[i].host) {
      open_item(r.items[i], model, r.items[i].host->span(), r.key.get());
    } else {
      of.push_back(i);
      leases.push_back(std::move(r.items[i].disk));
    }
  }
  if (!leases.empty()) {
    const auto read = disk->read(leases, r.deadline_ns);
    for (size_t i = 0; i < of.size(); i++) {
      Restore::Item& item = r.items[of[i]];
      if (read[i])
        open_item(item, model, read[i]->bytes, r.key.get());
      else
        fail_all(item, read[i].error());
      item.disk = std::move(leases[i]);
    }
  }
}

TransferThreads::TransferThreads(int n, std::function<bool()> work) : work_(std::move(work)) {
  for (int i = 0; i < n; i++)
    threads_.emplace_back([this] {
      uint64_t seen = 0;
      for (;;) {
        while (work_()) {
        }
        std::unique_lock lock(mu_);
        // Waking by itself, too: what is due later is nobody's bell.
        bell_.wait_for(lock, std::chrono::milliseconds(50), [&] { return stopping_ || rung_ != seen; });
        if (stopping_) return;
        seen = rung_;
      }
    });
}

TransferThreads::~TransferThreads() {
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
  }
  bell_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void TransferThreads::wake() {
  {
    std::lock_guard lock(mu_);
    rung_++;
  }
  bell_.notify_all();
}

}  // namespace carrel
