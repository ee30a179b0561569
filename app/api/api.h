// The HTTPS API: route table, who may call what, one error shape, one log line and one metric row per request.
//
// Threads: handlers run on connection threads; everything it holds is borrowed and outlives the server.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "app/admin/drill_service.h"
#include "app/api/generate.h"
#include "app/api/http.h"
#include "app/config/config.h"
#include "app/lifecycle/data_keys.h"
#include "app/observe/metrics.h"
#include "storage/catalog.h"

namespace carrel {

enum class Plane { kOpen, kTenant, kScrape, kAdmin };
std::string_view to_string(Plane plane);

struct Route {
  std::string_view method;
  std::string_view path;  // "{id}" at the end stands for one segment
  Plane plane;
  std::string_view what;
};
std::span<const Route> route_table();
std::string routes_json();

struct ApiServices {
  Env* env = nullptr;
  const Config* config = nullptr;
  Catalog* catalog = nullptr;
  Engine* engine = nullptr;
  Metrics* metrics = nullptr;
  DrillService* drills = nullptr;
  DataKeys* keys = nullptr;  // null: nothing is encrypted
  std::function<std::vector<std::string>()> not_ready;  // reason codes; empty: ready
};

class Api {
 public:
  explicit Api(ApiServices services);
  ~Api();
  HttpHandler handler();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace carrel
