// The management plane, `/admin/v1/`: drills, state, cache. Called when the key was found to have scope admin.
//
// Threads: connection threads; everything is borrowed. Acts (drills, verify, purge) are audited before they are done; one that cannot be
// audited is not done.
#pragma once
#include "app/admin/drill_service.h"
#include "app/api/generate.h"
#include "app/api/http.h"
#include "app/config/config.h"
#include "app/lifecycle/data_keys.h"
#include "engine/engine.h"
#include "storage/catalog.h"

namespace carrel {

struct AdminServices {
  Env* env = nullptr;
  const Config* config = nullptr;
  Catalog* catalog = nullptr;
  Engine* engine = nullptr;
  DrillService* drills = nullptr;
  DataKeys* keys = nullptr;  // null: nothing is encrypted
};

/// method and path: of a route of plane admin.
void handle_admin(const AdminServices& s, std::string_view method, std::string_view path, const KeyInfo& key, HttpRequest& http,
                  HttpResponse& out);

}  // namespace carrel
