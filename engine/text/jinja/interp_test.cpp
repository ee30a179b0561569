#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "engine/text/jinja/golden_templates.h"
#include "engine/text/jinja/template.h"

namespace carrel {
namespace {

using jinja::Origin;
using jinja::Template;
using jinja::Value;

Result<std::string> render(std::string_view source, std::string_view vars = "{}", const jinja::RenderLimits& limits = {}) {
  CARREL_ASSIGN(const Template t, Template::parse(source));
  CARREL_ASSIGN(const Value v, jinja::value_from_json(vars));
  return t.render(v, limits, {});
}

/// Folder of the published templates, or empty (then the test skips; under CI it fails).
std::string published() {
  const char* shared = std::getenv("CARREL_SHARED");
  const std::string dir = std::string(shared != nullptr ? shared : "../shared") + "/golden/text/templates";
  return Env::real()->is_dir(dir) ? dir : "";
}

std::string failures_of(const GoldenTemplateReport& r) {
  std::string out;
  for (const std::string& f : r.failures) out += f + "\n";
  return out;
}

TEST(Jinja, AgreesWithTheReferenceOnSmallTemplates) {
  const auto r = check_micro_templates(Env::real(), "engine/text/jinja/testdata/micro.jsonl");
  ASSERT_TRUE(r) << r.error().text();
  EXPECT_GE(r->n_micro, 150);
  EXPECT_EQ(r->n_micro_failed, 0) << failures_of(*r);
}

TEST(Jinja, AgreesWithTheReferenceOnPublishedTemplates) {
  const std::string dir = published();
  if (dir.empty()) {
    ASSERT_EQ(std::getenv("CI"), nullptr) << "../shared/golden/text/templates is missing";
    std::printf("skipped: published templates (CARREL_SHARED names no folder with golden/text/templates)\n");
    GTEST_SKIP();
  }
  const auto r = check_templates(Env::real(), dir);
  ASSERT_TRUE(r) << r.error().text();
  EXPECT_GE(r->n_cases, 3640);
  EXPECT_GE(r->n_micro, 174);
  EXPECT_GE(r->n_chat, 2900);
  EXPECT_EQ(r->n_cases_failed + r->n_micro_failed + r->n_chat_failed, 0) << failures_of(*r);
}

TEST(Jinja, EndsWhatHasNoEnd) {
  const char* bombs[] = {
      "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
      "{{ 'x' * 10000000000 }}",
      "{{ [0] * 9000000000000000000 }}",
      "{{ range(99999999)|length }}",
      "{% for a in range(99999) %}{% for b in range(99999) %}{{ a }}{% endfor %}{% endfor %}",
      "{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}",
      "{{ '%0999999999d' % 1 }}",
      "{{ '{:>999999999}'.format(1) }}",
      "{{ ('a' * 100000)|replace('', 'b' * 100000) }}",
      "{{ ('\\n' * 100000)|indent(100000, blank=true) }}",
      "{{ ('a' * 100000)|list|join('b' * 100000) }}",
      "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
  };
  for (const char* source : bombs) {
    const auto r = render(source);
    ASSERT_FALSE(r) << source;
    EXPECT_EQ(r.error().code, Code::kExhausted) << source << ": " << r.error().text();
  }
  EXPECT_FALSE(render("{{ " + std::string(100'000, '(')));
  EXPECT_FALSE(render("{{ " + std::string(100'000, '-') + "1 }}"));
  std::string nested;
  for (int i = 0; i < 10'000; ++i) nested += "{% if 1 %}";
  EXPECT_FALSE(render(nested));
}

TEST(Jinja, PaysForWhatItReads) {
  // Each of these would take minutes if reading a long text, or comparing after the last step, were free.
  const std::string text = "{% set a = 'x' * 6000000 %}{% set d = {} %}{% for i in range(100000) %}";
  for (const char* body : {"{% if a.startswith(a) %}{% endif %}", "{% if a.removeprefix(a) %}{% endif %}", "{% if a is lower %}{% endif %}",
                           "{% if d[a] %}{% endif %}", "{% if d.get(a) %}{% endif %}", "{% if a in d %}{% endif %}", "{% if a in [a ~ ''] %}{% endif %}",
                           "{% if a|float %}{% endif %}", "{% if a.partition('y') %}{% endif %}", "{% if a.rfind('y') %}{% endif %}"}) {
    const auto r = render(text + body + "{% endfor %}", "{}", {.max_steps = 2'000'000});
    ASSERT_FALSE(r) << body;
    EXPECT_EQ(r.error().code, Code::kExhausted) << body << ": " << r.error().text();
  }
  EXPECT_EQ(render("{{ range(100000)|unique|list|length }}").error().code, Code::kExhausted);
  EXPECT_EQ(render("{{ [1]|slice(1000000000)|list|length }}").error().code, Code::kExhausted);
}

TEST(Jinja, SearchesInLinearTime) {
  const std::string set = "{% set a = 'a' * 3000000 %}{% set b = 'a' * 1500000 ~ 'b' %}";
  EXPECT_EQ(*render(set + "{{ a.find(b) }} {{ b in a }} {{ a.count(b) }} {{ a.replace(b, '')|length }} {{ a.split(b)|length }}"), "-1 False 0 3000000 1");
  EXPECT_EQ(render(set + "{{ a.rfind('b' ~ 'a' * 1500000) }}{{ a.rfind(b) }}").error().code, Code::kExhausted);
}

TEST(Jinja, CyclesAreTakenApart) {
  // Under the address sanitizer a leak would fail here.
  EXPECT_EQ(*render("{% for i in [1, 2] %}{{ loop.changed(loop) }}{% endfor %}"), "TrueFalse");
  EXPECT_FALSE(render("{% for i in [1] %}{{ loop.changed(loop) }}{{ i.a.b }}{% endfor %}"));
  EXPECT_EQ(*render("{% set ns = namespace() %}{% set ns.me = ns %}{% macro m() %}{{ m is callable }}{% endmacro %}{% set ns.f = m %}{{ ns.f() }}"), "True");
}

TEST(Jinja, ListsChangeOnlyWhenAllowed) {
  jinja::RenderLimits limits;
  limits.allow_list_changes = true;
  const char* own = "{% set l = [] %}{% set _ = l.append(v) %}{{ l }}{{ l.pop() }}{{ l }}";
  EXPECT_EQ(*render(own, R"({"v":1})", limits), "[1]1[]");
  EXPECT_FALSE(render(own, R"({"v":1})"));
  EXPECT_FALSE(render("{{ v.append(1) }}", R"({"v":[]})", limits)) << "a list of the request must not change";
  EXPECT_FALSE(render("{% set l = [] %}{{ l.append(l) }}", "{}", limits));
}

TEST(Jinja, EveryByteKnowsItsOrigin) {
  const char* source =
      "<s>{{ v }}{{ '<t>' ~ v }}{{ v|upper }}{{ '<s>'|upper }}{{ v|replace('u', '<r>') }}{{ ['<a>', v]|join('<j>') }}{{ '<%s>' % v }}"
      "{{ '<{}>'.format(v) }}{{ [v] }}{{ v|tojson }}{{ v[1:] }}{{ v.split('s')[0] }}";
  const auto t = Template::parse(source);
  ASSERT_TRUE(t);
  const auto vars = jinja::value_from_json(R"({"v":"[user]"})");
  const auto out = t->render_marked(*vars, {}, {});
  ASSERT_TRUE(out) << out.error().text();
  for (size_t i = 0; i < out->bytes.size(); ++i) {
    const char c = out->bytes[i];
    const bool from_template = c == '<' || c == '>', from_input = c == '[' || c == ']' || c == 'e' || c == 'E';
    if (!from_template && !from_input) continue;
    EXPECT_EQ(jinja::origin_at(*out, i), from_template ? Origin::kTemplate : Origin::kInput) << i << " in " << out->bytes;
  }
}

TEST(Jinja, SaysWhereAndWhat) {
  const auto raised = render("a\n{{ raise_exception('only user') }}");
  EXPECT_EQ(raised.error().code, Code::kInvalidArgument);
  EXPECT_EQ(raised.error().message, "only user");
  EXPECT_EQ(raised.error().where, "template line 2");
  EXPECT_EQ(render("{{ raise_exception('') }}").error().message, "the template refuses this conversation");
  EXPECT_EQ(render("{{ x.y }}").error().code, Code::kUnsupported);
}

}  // namespace
}  // namespace carrel
