#include "app/api/connections.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace carrel {
namespace {

struct Pair {
  int ours = -1, theirs = -1;
  Pair() {
    int fds[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    ours = fds[0], theirs = fds[1];
  }
  ~Pair() { ::close(ours), ::close(theirs); }
  bool ended(int within_ms) const {
    pollfd p{theirs, POLLIN, 0};
    char byte;
    return ::poll(&p, 1, within_ms) == 1 && ::recv(theirs, &byte, 1, 0) == 0;
  }
};

TEST(Connections, what_takes_too_long_is_ended) {
  Connections c;
  Pair p;
  c.add(p.ours, Connections::Seconds(0));
  EXPECT_TRUE(p.ended(5000));
  c.remove();
}

TEST(Connections, work_has_no_limit_and_the_next_head_has) {
  Connections c;
  Pair p;
  c.add(p.ours, Connections::Seconds(60));
  c.add(p.theirs, Connections::Seconds(0));  // the same thread: nothing changes
  c.no_limit();
  EXPECT_FALSE(p.ended(600));
  c.limit(Connections::Seconds(0));
  EXPECT_TRUE(p.ended(5000));
  c.remove();
}

TEST(Connections, one_that_left_is_not_touched) {
  Connections c;
  Pair p;
  c.add(p.ours, Connections::Seconds(0));
  c.remove();
  c.close_all();
  EXPECT_FALSE(p.ended(600));
}

TEST(Connections, a_stop_ends_all_and_those_that_come_late) {
  Connections c;
  Pair first, late;
  c.add(first.ours, Connections::Seconds(60));
  c.close_all();
  EXPECT_TRUE(first.ended(0));
  c.remove();
  c.add(late.ours, Connections::Seconds(60));
  EXPECT_TRUE(late.ended(0));
  c.remove();
}

}  // namespace
}  // namespace carrel
