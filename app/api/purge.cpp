#include "app/api/purge.h"

namespace carrel {

Result<TenantPurge> purge_tenant(Catalog& catalog, Engine& engine, DataKeys* keys, const std::string& tenant, const std::string& actor) {
  CARREL_ASSIGN(const Namespace old, catalog.tenant_namespace(tenant));
  CARREL_TRY(catalog.record_act(actor, AuditAction::kCachePurge, tenant, {{"namespace", old.id}}));
  CARREL_TRY(catalog.renew_namespace(tenant, actor));
  if (keys != nullptr) keys->forget(old.id);
  return TenantPurge{old.id, engine.state().purge(old.id)};
}

}  // namespace carrel
