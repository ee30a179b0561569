#!/usr/bin/env python3
"""Writes micro.jsonl: small templates with what Jinja2 gives for them. Needs the package Jinja2 (made with 3.1.6).

The environment is the one chat templates are written for: trim_blocks, lstrip_blocks, loop controls, a no-op `generation` block,
an immutable sandbox. First line: the variables; then {"template", "output" | "error": {"kind", "message"}}.
"""
import datetime
import json
import pathlib

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(["name:endgeneration"], drop_needle=True), lineno=line)


class Raised(Exception):
    pass


def raise_exception(message):
    raise Raised(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.datetime(2025, 6, 30, 12, 0, 0).strftime(f)
    return env


VARS = {
    "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo", "n": None},
                 {"role": "tool", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}],
    "tool": {"name": "f", "parameters": {"type": "object", "required": ["x"], "properties": {"x": {"type": "string", "enum": ["a", "b"]}}}},
    "num": [3, 1, 2.5, -4], "words": ["pear", "Apple", "fig", "apple"], "none": None, "yes": True, "no": False, "zero": 0, "big": 12345678901234567890,
    "text": "The quick  brown\tfox\n", "uni": "ÄßΣ 你好 😀 é", "html": "<a href='x'>&\"</a>", "empty": "", "nothing": [], "blank": " \u00a0\u3000x\u2003",
    "pairs": [["a", 1], ["b", 2]], "table": [{"g": "x", "v": 1}, {"g": "y", "v": 2}, {"g": "x", "v": 3}], "d": {"keys": 5, "b": {"c": 1}, "A": 0},
}

TEMPLATES = r"""
{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% if not loop.last %}|{% endif %}{% endfor %}
{% for m in messages if m.role != 'user' %}{{ loop.index }}/{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{% endfor %}
{% for m in messages %}{{ loop.cycle('a', 'b') }}{{ loop.changed(m.role) }}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}
{% for a, b in pairs %}{{ a }}{{ b }}{% else %}no{% endfor %}
{% for (a, b), c in [((1, 2), 3)] %}{{ a + b + c }}{% endfor %}
{% for x in [1, [2, [3]]] recursive %}{% if x is sequence %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}
{% for x in range(4) %}{% if x is odd %}{% continue %}{% endif %}{{ x }}{% endfor %}
{% for x in 'abc' %}{{ x }}{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}
{% for k, v in tool.items() %}{{ k }}:{{ v is mapping }};{% endfor %}
{% for k, v in tool.parameters|dictsort %}{{ k }} {% endfor %}
{% set ns = namespace(i=0, found=false) %}{% for n in num %}{% if n > 2 %}{% set ns.i = ns.i + 1 %}{% endif %}{% endfor %}{{ ns.i }}{{ ns.found }}
{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}
{% set a = b = 2 %}
{% set x %}[{{ 'a' }}]{% endset %}{{ x }}{{ x is string }}
{% set x | upper | trim %} abc {% endset %}{{ x }}
{% filter upper | replace('B', '-') %}abc{% endfilter %}
{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}
{% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %}
{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m.name }}
{% macro m() %}{{ kwargs }}{{ varargs }}{% endmacro %}{{ m(1, x=2) }}
{% macro m() %}{{ caller('q') }}{% endmacro %}{% call(x) m() %}<{{ x }}>{% endcall %}
{% macro m() %}x{% endmacro %}{{ m(a=1) }}
{% macro m(a) %}x{% endmacro %}{{ m(1, a=1) }}
{% macro f(n) %}{{ n * f2(n) }}{% endmacro %}{% macro f2(n) %}{{ n }}{% endmacro %}{{ f(3) }}
{% macro f(n) %}{% if n > 1 %}{{ f(n - 1) }},{% endif %}{{ n }}{% endmacro %}{{ f(5) }}
{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}
{% if zero %}a{% elif empty %}b{% elif nothing %}c{% else %}d{% endif %}
{% if yes and not no %}1{% endif %}{% if none is none %}2{% endif %}{% if undefd is not defined %}3{% endif %}
{{ 'a' if zero else 'b' if no else 'c' }}
{{ ('a', 'b')[1] }}{{ (1,) }}{{ () }}{{ [1, 2,] }}{{ {'a': 1,} }}
{{ {1: 'a', true: 'b', none: 'c', 1.5: 'd'} }}
{{ num[-1] }}{{ num[:2] }}{{ num[::2] }}{{ num[-2:] }}{{ num[10:] }}{{ num[::-1] }}
{{ uni[3:5] }}{{ uni[-1] }}{{ uni[::-1] }}{{ uni|length }}{{ uni[99:] }}
{{ text[1:-1:3] }}
{{ messages[0].role }}{{ messages[0]['role'] }}{{ messages[-1].content[0].text }}{{ messages.0.role }}
{{ d.keys() | list }}{{ d['keys'] }}{{ d.b.c }}{{ d.get('zz', 'k') }}{{ d.get('zz') }}
{{ messages[9] is defined }}{{ messages[0].zz is defined }}{{ zz is defined }}
{{ zz.a }}
{{ zz['a'] }}
{{ messages[9].role }}
{{ zz + 1 }}
{{ zz() }}
{{ zz == zz2 }}{{ zz == none }}{{ zz in [1] }}{{ [zz] }}{{ zz|list }}{{ zz ~ 'a' }}
{{ none + 'a' }}
{{ 'a' * 3 }}{{ 3 * 'a' }}{{ [1] * 2 }}{{ (1,) + (2,) }}
{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % -3 }} {{ 7.5 // 2 }} {{ 2 ** -1 }} {{ 1 / 3 }} {{ -7.5 % 2 }} {{ 2 ** 10 }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ 1e3 }} {{ 1.0e-5 }} {{ 1e16 }} {{ 123456789.125 }} {{ 1_000 }} {{ 0x1f }} {{ 0b11 }} {{ 0o17 }} {{ 1e300 * 10 }} {{ 0.1 }} {{ big }}
{{ 1 == true }}{{ 0 == false }}{{ 1.0 == 1 }}{{ 'a' != 'b' }}{{ (1, 2) == [1, 2] }}{{ none == false }}
{{ 1 < 2 <= 2 < 3 }}{{ 'B' < 'a' }}{{ [1, 2] >= [1, 1] }}{{ 1 > 2 > 1 }}
{{ 1 < 'a' }}
{{ 'x' in 'xyz' }}{{ 'x' not in ['x'] }}{{ 'b' in d }}{{ 2 in (1, 2) }}{{ 1 in 'a' }}
{{ not 1 == 2 }}{{ not (1 and 0) }}{{ 1 and 2 }}{{ 0 or '' or 'z' }}{{ none or 0 }}
{{ 'a' ~ 1 ~ none ~ [1] ~ 2.0 }}{{ 1 ~ 2 }}{{ 'a' 'b' "c" }}
{{ -num[0] }}{{ +num[0] }}{{ -(1 + 2) }}{{ --3 }}
{{ -none }}
{{ "\x41\u00e9\n\t\\\"\'" }}{{ '\101' }}{{ 'a\qb' }}
{{ text|upper }}{{ text|lower }}{{ text|title }}{{ text|capitalize }}{{ text|trim }}|{{ text|length }}
{{ uni|upper }}{{ uni|lower }}{{ 'ßx'|title }}{{ 'ŉ ǰ ﬁ İ'|upper }}{{ 'İ'|lower|length }}
{{ "they're bill's friends"|title }} {{ "they're bill's friends".title() }} {{ 'a-b (c) [d]'|title }}
[{{ blank|trim }}][{{ blank.strip() }}][{{ '--a--'|trim('-') }}][{{ 'abcab'.strip('ba') }}][{{ 'xé'.rstrip('é') }}]
{{ words|sort }}{{ words|sort(case_sensitive=true) }}{{ words|sort(reverse=true) }}{{ num|sort }}
{{ table|sort(attribute='g,v')|map(attribute='v')|list }}{{ table|sort(attribute='v', reverse=true)|map(attribute='g')|join }}
{{ [1, 'a']|sort }}
{{ words|unique|list }}{{ words|unique(true)|list }}{{ table|unique(attribute='g')|map(attribute='v')|list }}
{{ words|join(', ') }}{{ num|join }}{{ table|join('-', attribute='g') }}{{ 'abc'|join('|') }}{{ pairs|join }}
{{ words|first }}{{ words|last }}{{ num|min }}{{ num|max }}{{ num|sum }}{{ table|sum(attribute='v') }}{{ words|max }}
{{ table|groupby('g')|list }}
{{ table|groupby('g')|map('last')|map('length')|list }}
{{ table|selectattr('g', 'eq', 'x')|list }}{{ table|rejectattr('v', 'gt', 1)|list }}{{ messages|selectattr('n', 'undefined')|list|length }}
{{ num|select('gt', 1)|list }}{{ num|reject('lessthan', 2)|list }}{{ [0, 1, '', 'a']|select|list }}{{ num|map('string')|list }}
{{ words|map('replace', 'p', 'P')|join(' ') }}{{ num|map('round', 1)|list }}{{ words|map('upper')|first }}
{{ words|map('nope')|list }}
{% set g = words|map('upper') %}{{ g|list }}{{ g|list }}
{{ num|batch(3)|list }}{{ num|batch(3, 'x')|list }}{{ num|slice(3)|list }}{{ num|slice(3, 'x')|list }}
{{ 'abc'|list }}{{ d|list }}{{ 'abc'|reverse }}{{ num|reverse|list }}{{ d|length }}{{ nothing|length }}
{{ num|tojson }}{{ tool|tojson }}{{ uni|tojson }}{{ html|tojson }}{{ none|tojson }}{{ big|tojson }}{{ 1.50|tojson }}
{{ tool|tojson(indent=2) }}
{{ tool|tojson(indent=0) }}
{{ tool|tojson(indent='-') }}
{{ uni|tojson(ensure_ascii=true) }}{{ d|tojson(sort_keys=true) }}{{ d|tojson(separators=(',', ':')) }}{{ d|tojson(indent=1, separators=(';', '=')) }}
{{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }}
{{ (1, 2)|tojson }}{{ zz|tojson }}
{{ words|map('upper')|tojson }}
{{ d.items()|tojson }}
{{ zz|default('x') }}{{ none|default('x') }}{{ none|default('x', true) }}{{ empty|d('y', boolean=True) }}{{ zz|default }}
{{ '42'|int }}{{ '4.7'|int }}{{ 'x'|int(9) }}{{ '0x1f'|int(base=16) }}{{ 'ff'|int(0, 16) }}{{ 3.9|int }}{{ none|int }}{{ ' 7 '|int }}{{ yes|int }}
{{ '1.5'|float }}{{ 'x'|float }}{{ 2|float }}{{ '1e3'|float }}{{ 'x'|float(1.5) }}
{{ 2.5|round }}{{ 3.14159|round(2) }}{{ 2.1|round(0, 'ceil') }}{{ 2.9|round(method='floor') }}{{ 7|round }}{{ 1234|round(-2) }}{{ 2.675|round(2) }}
{{ -3|abs }}{{ (-3)|abs }}{{ (-2.5)|abs }}
{{ 'a b  c'|wordcount }}{{ 'hello world foo'|truncate(11) }}{{ 'hello world foo bar'|truncate(9, true) }}{{ 'hello'|center(11) }}|{{ 'x y&z/é'|urlencode }}
{{ html|e }}{{ html|escape|e }}{{ html|safe }}{{ html|forceescape }}{{ 'a'|safe + '<' }}{{ '<' + 'a'|safe }}{{ 'a'|safe ~ '<' }}
{{ 'a\nb\n\nc'|indent(2) }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n\nb\n'|indent(1, blank=true) }}|{{ 'a\nb'|indent(width='>>') }}
{{ 'aXbXc'|replace('X', '') }}{{ 'aaaa'|replace('a', 'b', 2) }}{{ 'ab'|replace('', '-') }}{{ 12|replace(1, 3) }}
{{ '%s-%d-%05.1f-%x-%%' % ('a', 3, 2.25, 255) }}{{ '%s' % 'z' }}{{ '%(k)s' % {'k': 1} }}{{ '%-5s|%5s' % ('a', 'b') }}{{ '%r' % 'a' }}
{{ '%d' % 'a' }}
{{ '%s %s' % ('a',) }}
{{ '%s'|format('x') }}{{ '%(a)s'|format(a=1) }}
{{ '{} {}'.format(1, 'b') }}{{ '{1}{0}'.format('a', 'b') }}{{ '{x}'.format(x=2) }}{{ '{{}}{}'.format(1) }}
{{ '{:>5}|{:<5}|{:^5}|{:*^5}'.format('a', 'b', 'c', 'd') }}{{ '{:05d}|{:+}|{:,}|{:x}|{:.1%}|{:e}|{:8.3f}'.format(42, 1, 1234567, 255, 0.256, 12345.678, 3.14159) }}
{{ '{a[0]}{b.c}'.format(a=[1], b=d.b) }}
{{ '{0[name]}'.format(tool) }}{{ '{!r}'.format('a') }}
{{ '{} {}'.format(1) }}
{{ text.split() }}{{ text.split(' ') }}{{ text.split(None, 1) }}{{ 'a,b,c'.rsplit(',', 1) }}{{ 'a--b'.split('--') }}{{ 'a b'.split(maxsplit=0) }}
{{ 'a'.split('') }}
{{ 'a\nb\r\nc\u2028d'.splitlines() }}{{ 'a\nb\n'.splitlines(true) }}
{{ 'abc'.startswith('b') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'abc'.find('c') }}{{ 'abc'.rfind('z') }}{{ 'héé'.find('é') }}{{ 'abab'.rindex('ab') }}{{ 'aaa'.count('a') }}
{{ 'abc'.index('z') }}
{{ 'a=b=c'.partition('=') }}{{ 'a=b=c'.rpartition('=') }}{{ 'abc'.partition('z') }}{{ 'abc'.removeprefix('a').removesuffix('c') }}
{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '.') }}|{{ 'abc'.capitalize() }}{{ 'ABC'.lower() }}{{ ','.join(['a', 'b']) }}
{{ ','.join([1]) }}
{{ 'ab1'.isalnum() }}{{ 'ab'.isalpha() }}{{ '²'.isdigit() }}{{ '²'.isdecimal() }}{{ '½'.isnumeric() }}{{ ' \t'.isspace() }}{{ 'aB'.islower() }}{{ 'AB'.isupper() }}{{ ''.isalpha() }}
{{ nothing.append(1) }}
{{ d.update({}) }}
{{ d.pop('b') }}
{{ num.index(2.5) }}{{ num.count(1) }}{{ (1, 2, 1).count(1) }}
{{ 1 is number }}{{ yes is number }}{{ 1.0 is float }}{{ 1 is integer }}{{ 'a' is string }}{{ d is mapping }}{{ num is sequence }}{{ num is iterable }}{{ 1 is iterable }}
{{ 3 is odd }}{{ 4 is even }}{{ 9 is divisibleby 3 }}{{ 1 is eq 1 }}{{ 1 is ne(2) }}{{ 1 is lt 2 }}{{ 2 is ge 2 }}{{ 'a' is in 'abc' }}{{ none is sameas none }}
{{ 'abc' is lower }}{{ 'ABC' is upper }}{{ yes is true }}{{ no is false }}{{ zero is false }}{{ range is callable }}{{ 'upper' is filter }}{{ 'odd' is test }}{{ 'x'|safe is escaped }}
{{ 1 is defined and zz is undefined }}{{ not zz is defined }}{{ num[0] is not none }}
{{ range(3)|list }}{{ range(1, 7, 2)|list }}{{ range(3, 0, -1)|list }}{{ range(3) }}{{ range(5)[-1] }}{{ 3 in range(5) }}
{{ range(0, 10, 0) }}
{{ range(1000000)|length }}
{{ dict(a=1) }}{{ dict({'b': 2}, c=3) }}
{{ raise_exception('no: ' ~ messages[0].role) }}
{% if no %}{{ 'a'|nosuch }}{% endif %}ok
{% if yes %}{{ 'a'|nosuch }}{% endif %}
{{ 'a'|nosuch }}
{{ 'a' is nosuch }}
{{ strftime_now('%d %b %Y, %H:%M') }}{{ strftime_now('%-d/%-m %e|%F %T %D') }}
a  {{- ' b ' -}}  c{#- note -#}  d
  {%- if yes %}  x  {%- endif %}  y
  {% if yes %}\n    x\n  {% endif %}\n  y
  {%+ if yes %}x{% endif %}\n{{ 1 +}}\n
{% raw %}{{ not }} {% if %}{% endraw %}!
{% raw -%}  a  {%- endraw %}
{# a {{ b }} #}x{##}y
{{ '}}' }}{{ "%}" }}{{ {'a': {'b': 1}}['a']['b'] }}
{% generation %}x{% set q = 1 %}{% endgeneration %}{{ q is defined }}
{% if yes %}{% set q = 1 %}{% endif %}{{ q }}{% for i in [1] %}{% set q = 2 %}{% set r = 1 %}{% endfor %}{{ q }}{{ r is defined }}
{% set i = 9 %}{% for i in [1, 2] %}{{ i }}{% endfor %}{{ i }}
{% for i in [1, 2] %}{% for j in [3] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}
{% for
{{ 1 +* 2 }}
{% if yes %}
{% endfor %}
{{ (1 }}
{{ 'a }}
{% set = 1 %}
{% break %}
{{ none|length }}{{ 1 }}
{{ 1|length }}
{% for a, b in [[1]] %}x{% endfor %}
{% for x in 1 %}x{% endfor %}
{{ words[1:3] | map('lower') | list | tojson }}{{ words | map('length') | sum }}
{{ messages | map(attribute='role') | join(',') }}{{ messages | map(attribute='n', default='-') | list }}{{ messages | map(attribute='content.0.text') | list }}
{{ words | select('in', ['fig', 'pear']) | list }}{{ 'fig' in (words | list) }}
{{ ['a', 'b'] | length == 2 and 'a' ~ 'b' == 'ab' }}{{ 1 + 2 ~ 3 }}{{ 2 * 3 ~ 4 }}
{{ 'abc'.center(8, '-') }}{{ 'é'.center(4) }}|{{ '-7'.zfill(5) }}{{ '12'.zfill(1) }}{{ 'AbC'.casefold() }}{{ 'ab'|center(7) }}|
{{ 1.5 is odd }}{{ 3.0 is odd }}{{ -3 is odd }}{{ 4.0 is even }}{{ 7.5 is divisibleby(2) }}{{ -6 is divisibleby(3) }}
{{ 'x' % [1] }}{{ 'x%s' % [1] }}{{ range(3).count(1) }}{{ range(3).index(2) }}{{ ('ab'|safe)|list }}
{{ [1, 2] == [1, 2.0] }}{{ 'aaa'.rfind('a') }}{{ 'a-b-c'.rsplit('-', 1) }}{{ 'a-b'.rpartition('-') }}
{{ {'a': none, 'b': [1, {'c': 'it\'s'}], 'd': 'é\n'} }}{{ '\u200b\x7f' ~ ['\u200b\x7f\U0001F600'] }}
"""


def main():
    env = environment()
    out = [json.dumps({"vars": VARS}, ensure_ascii=False)]
    for line in TEMPLATES.strip("\n").split("\n"):
        template = line.replace("\\n", "\n") if line.lstrip().startswith(("{% if yes %}\\n", "{%+")) else line
        case = {"template": template}
        try:
            compiled = env.from_string(template)
            try:
                case["output"] = compiled.render(**VARS)
            except Raised as e:
                case["error"] = {"kind": "raise", "message": str(e)}
            except Exception as e:  # noqa: BLE001 - every failure of the reference is a result
                case["error"] = {"kind": "runtime", "message": f"{type(e).__name__}: {e}"}
        except SyntaxError as e:  # of Python: break outside a loop
            case["error"] = {"kind": "syntax", "message": str(e)}
        except jinja2.TemplateSyntaxError as e:
            case["error"] = {"kind": "syntax", "message": str(e)}
        out.append(json.dumps(case, ensure_ascii=False))
    pathlib.Path(__file__).with_name("micro.jsonl").write_text("\n".join(out) + "\n", encoding="utf-8")
    print(len(out) - 1, "templates")


if __name__ == "__main__":
    main()
