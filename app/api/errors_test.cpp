#include "app/api/errors.h"

#include <gtest/gtest.h>

namespace carrel {
namespace {

TEST(Errors, ATenantIsToldWhatButNotWhereInTheServer) {
  const std::string body = error_body(Error{Code::kExhausted, "the disk is full", "/var/lib/carrel/catalog.db"}, "req-1");
  EXPECT_NE(body.find("the disk is full"), std::string::npos);
  EXPECT_EQ(body.find("/var/lib"), std::string::npos);
}

TEST(Errors, AFieldOfTheRequestIsNamed) {
  const std::string body = error_body(Error{Code::kInvalidArgument, "must be a number", "top_p"}, "req-1");
  EXPECT_NE(body.find("top_p: must be a number"), std::string::npos);
  EXPECT_NE(body.find("\"param\":\"top_p\""), std::string::npos);
}

}  // namespace
}  // namespace carrel
