#!/usr/bin/env python3
"""House checks: who may include whom, and the shape of files. Prints every violation as file:line, and fails if there is one.

    house_test.py [ROOT]          checks a checkout
    house_test.py --self-test     proves that each rule fails on a bad sample

The tables are arrows.txt and exceptions.txt beside this file.
"""

import fnmatch
import pathlib
import re
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TREES = ("src", "sim", "apps", "bench", "test", "include")
SOURCES = (".cc", ".h")
HEADER_LINES_MAX = 300
SOURCE_LINES_MAX = 600
TEST_LINES_MAX = 700

TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/                               # comments
      |R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"      # raw strings
      |"(?:\\.|[^"\\\n])*"                               # strings
      |(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'               # characters, but no digit separators
    """,
    re.VERBOSE | re.DOTALL,
)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(["<])([^">\n]+)[">]', re.MULTILINE)


def blank(text, strings):
    """`text` with comments and raw strings, and with `strings` all literals, replaced by blanks; line numbers stay."""
    def replace(match):
        token = match.group()
        if token.startswith('"') and not strings:
            return token
        return re.sub(r"[^\n]", " ", token)
    return TOKEN.sub(replace, text)


class Arrows:
    def __init__(self, path):
        self.folders = {}
        self.for_tests = set()
        self.third_party = []
        section = None
        for line in path.read_text().splitlines():
            line = line.split("#")[0].strip()
            if not line:
                continue
            if line.startswith("["):
                section = line.strip("[]")
            elif section == "tests":
                self.for_tests |= set(line.split())
            else:
                left, _, right = line.partition(":")
                if section == "folders":
                    self.folders[left.strip()] = set(right.split())
                else:
                    self.third_party.append((left.split(), set(right.split())))

    def folder(self, path):
        """The line of the table that a path such as "tier/host/arena.h" falls under; None when no line fits."""
        parts = path.split("/")[:-1]
        for count in range(len(parts), 0, -1):
            if "/".join(parts[:count]) in self.folders:
                return "/".join(parts[:count])
        return None


class House:
    def __init__(self, root, arrows, exceptions):
        self.root = root
        self.arrows = arrows
        self.exceptions = [line.split()[:2] for line in exceptions.read_text().splitlines() if line.strip() and not line.startswith("#")]
        self.violations = []

    def report(self, rule, path, line, message):
        if not any(rule == rule_of and fnmatch.fnmatchcase(path, pattern) for rule_of, pattern in self.exceptions):
            self.violations.append((path, line, rule, message))

    def check(self):
        for tree in TREES:
            for path in sorted((self.root / tree).rglob("*")):
                if path.suffix in SOURCES and path.is_file():
                    self.check_file(path.relative_to(self.root).as_posix(), path.read_text())
        return sorted(self.violations)

    def check_file(self, path, text):
        tree = path.split("/")[0]
        is_test = tree == "test" or path.endswith("_test.cc") or "/testing/" in path
        self.check_size(path, text, is_test)
        self.check_name(path)
        self.check_includes(path, tree, blank(text, strings=False))
        self.check_words(path, tree, is_test, blank(text, strings=True))

    def check_size(self, path, text, is_test):
        lines = text.count("\n")
        limit = TEST_LINES_MAX if is_test else HEADER_LINES_MAX if path.endswith(".h") else SOURCE_LINES_MAX
        if lines > limit:
            self.report("size", path, lines, f"{lines} lines, at most {limit}: split it by what it does")

    def check_name(self, path):
        for part in path.split("/"):
            if re.search(r"(^|_)(utils?|helpers?|misc)(_|\.|$)", part):
                self.report("name", path, 1, f"'{part}' says nothing about what is inside")

    # Includes.

    def check_includes(self, path, tree, text):
        inside = path.split("/", 1)[1] if tree in ("src", "include") else path
        folder = self.arrows.folder(inside)
        if folder is None:
            self.report("arrow", path, 1, "its folder has no line in test/tidy/arrows.txt")
            return
        for match in INCLUDE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            quote, name = match.groups()
            if self.check_third_party(path, line, folder, name):
                continue
            if quote == '"':
                self.check_arrow(path, line, tree, folder, name)

    def check_third_party(self, path, line, folder, name):
        """Whether `name` is a listed third-party header."""
        for patterns, allowed in self.arrows.third_party:
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
                if folder not in allowed:
                    self.report("third-party", path, line, f"{folder} may not include {name}: only {', '.join(sorted(allowed))}")
                return True
        return False

    def check_arrow(self, path, line, tree, folder, name):
        if tree not in ("src", "include"):
            beside = (self.root / path).parent / name
            if beside.exists() or (self.root / tree / name).exists():
                return  # local to an app, a benchmark or a test
        target = self.arrows.folder(name)
        exists = any((self.root / base / name).exists() for base in ("src", "include", "."))
        if target is None or not exists:
            self.report("include", path, line, f'no "{name}" under src/, include/ or the root: write includes relative to src, others in <>')
            return
        allowed = self.arrows.folders[folder]
        is_unit_test = path.endswith("_test.cc")
        if target == folder or target in allowed or "*" in allowed or (is_unit_test and target in self.arrows.for_tests):
            return
        self.report("arrow", path, line, f"{folder} may not include {target} ({name})")

    # Words in the code.

    def check_words(self, path, tree, is_test, text):
        def forbid(rule, pattern, message):
            for match in re.finditer(pattern, text):
                self.report(rule, path, text.count("\n", 0, match.start()) + 1, message)

        if path.endswith(".h"):
            forbid("using-namespace", r"\busing\s+namespace\b", "no `using namespace` in a header")
        forbid("shared_ptr", r"\b(shared_ptr|make_shared|enable_shared_from_this)\b",
               "shared ownership needs a reason in test/tidy/exceptions.txt")
        if tree in ("src", "test"):
            forbid("sleep", r"\b(sleep_for|sleep_until|usleep|nanosleep)\b|(?<![\w.>])sleep\s*\(",
                   "no sleeps: wait for the event, or use a manual clock")
        if tree == "src" and not is_test:
            forbid("print", r"\bstd::(cout|cerr|clog)\b|\bv?f?printf\s*\(|\bf?puts\s*\(", "output is for apps/: return it or log it")
            forbid("getenv", r"\b(secure_)?getenv\b|\benviron\b", "only apps/ read the environment")


# Each bad sample: rule, path, text, and the line it must be reported at. Each good one must pass.
BAD = [
    ("arrow", "src/index/a.h", '// why\n#include "session/ok.h"\n', 2),
    ("arrow", "src/session/a.cc", '#include "engine/api/ok.h"\n', 1),
    ("arrow", "src/serving/a.cc", '#include "engine/llamacpp/ok.h"\n', 1),
    ("arrow", "src/server/http/a.cc", '#include "session/ok.h"\n', 1),
    ("arrow", "src/tier/host/a.cc", '#include "tier/testing/ok.h"\n', 1),
    ("arrow", "src/serving/a_test.cc", '#include "server/ok.h"\n', 1),
    ("arrow", "src/somewhere/a.cc", "int x;\n", 1),
    ("include", "src/index/a.cc", '#include "ok.h"\n', 1),
    ("include", "src/index/a.cc", '#include "base/absent.h"\n', 1),
    ("third-party", "src/serving/a.cc", "#include <llama.h>\n", 1),
    ("third-party", "apps/kvtide/a.cc", '#include "llama.h"\n', 1),
    ("third-party", "src/engine/fake/a.cc", '#include "common.h"\n', 1),
    ("third-party", "src/pool/api/a.cc", "#include <hiredis/hiredis.h>\n", 1),
    ("third-party", "src/serving/a.cc", "\n#include <boost/asio/post.hpp>\n", 2),
    ("third-party", "src/hint/a.cc", "#include <boost/beast.hpp>\n", 1),
    ("size", "src/base/a.h", "\n" * (HEADER_LINES_MAX + 1), HEADER_LINES_MAX + 1),
    ("size", "src/base/a.cc", "\n" * (SOURCE_LINES_MAX + 1), SOURCE_LINES_MAX + 1),
    ("size", "test/scenario/a_test.cc", "\n" * (TEST_LINES_MAX + 1), TEST_LINES_MAX + 1),
    ("name", "src/base/string_utils.h", "int x;\n", 1),
    ("name", "src/base/util.cc", "int x;\n", 1),
    ("using-namespace", "src/base/a.h", "\n\nusing namespace std;\n", 3),
    ("shared_ptr", "src/index/a.h", "std::shared_ptr<int> p;\n", 1),
    ("shared_ptr", "src/session/a.cc", "auto p = std::make_shared<int>(1);\n", 1),
    ("sleep", "src/base/a_test.cc", "/* a\n b */ std::this_thread::sleep_for(1s);\n", 2),
    ("sleep", "test/scenario/a_test.cc", "usleep(10);\n", 1),
    ("sleep", "src/base/a.cc", "::sleep(1);\n", 1),
    ("print", "src/serving/a.cc", 'std::cout << "x";\n', 1),
    ("print", "src/serving/a.cc", 'std::fprintf(stderr, "x");\n', 1),
    ("getenv", "src/engine/fake/a.cc", 'auto* x = std::getenv("X");\n', 1),
]
GOOD = [
    ("src/serving/a_test.cc", '#include "engine/fake/ok.h"\n#include "tier/testing/ok.h"\nint main() { std::printf("x"); }\n'),
    ("src/tier/host/a.cc", '#include "tier/api/ok.h"\n#include "base/ok.h"\n#include <vector>\n'),
    ("src/server/http/a.cc", '#include "server/ok.h"\n#include <boost/asio/post.hpp>\n'),
    ("src/engine/llamacpp/a.cc", '#include <llama.h>\n#include "chat.h"\n#include "engine/api/ok.h"\n'),
    ("src/base/a.cc", '// std::cout, sleep_for and std::shared_ptr in a comment\nauto s = "std::getenv";  // #include "session/ok.h"\n'),
    ("src/base/b.cc", 'auto s = R"x(\n#include "session/ok.h"\nusleep(1);)x";\nint n = 1\'000; char c = \'"\'; std::snprintf(b, 1, "x");\n'),
    ("apps/kvtide/a.cc", '#include "apps/kvtide/ok.h"\n#include "serving/ok.h"\n#include "ok.h"\nauto* x = std::getenv("X");\n'),
    ("test/scenario/a_test.cc", '#include "scenario/ok.h"\n#include "session/ok.h"\n'),
    ("src/base/b.h", "\n" * HEADER_LINES_MAX),
]
HEADERS = ["src/base", "src/session", "src/engine/api", "src/engine/fake", "src/engine/llamacpp", "src/server", "src/serving",
           "src/tier/api", "src/tier/testing", "apps/kvtide", "test/scenario"]


def self_test():
    arrows = Arrows(HERE / "arrows.txt")
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for header in HEADERS:
            (root / header).mkdir(parents=True)
            (root / header / "ok.h").write_text("#pragma once\n")

        def violations(path, text):
            house = House(root, arrows, HERE / "exceptions.txt")
            house.check_file(path, text)
            return [(rule, line) for _, line, rule, _ in house.violations]

        for rule, path, text, line in BAD:
            found = violations(path, text)
            if found != [(rule, line)]:
                failures += 1
                print(f"bad sample {path} {text[:60]!r}: expected {[(rule, line)]}, found {found}")
        for path, text in GOOD:
            found = violations(path, text)
            if found:
                failures += 1
                print(f"good sample {path} {text[:60]!r}: found {found}")
        untested = {"arrow", "include", "third-party", "size", "name", "using-namespace", "shared_ptr", "sleep", "print", "getenv"}
        untested -= {rule for rule, *_ in BAD}
        if untested:
            failures += 1
            print("rules without a bad sample:", *sorted(untested))

        # The walk itself: a bad file in a tree is found, and a clean tree is clean.
        clean = House(root, arrows, HERE / "exceptions.txt").check()
        (root / "src/base/bad.cc").write_text('#include "session/ok.h"\n')
        dirty = House(root, arrows, HERE / "exceptions.txt").check()
        if clean or [(path, line, rule) for path, line, rule, _ in dirty] != [("src/base/bad.cc", 1, "arrow")]:
            failures += 1
            print(f"tree walk: clean tree gave {clean}, dirty tree gave {dirty}")
    print(f"self-test: {len(BAD)} bad and {len(GOOD)} good samples, {failures} failures")
    return failures


def main(arguments):
    if arguments == ["--self-test"]:
        return 1 if self_test() else 0
    root = pathlib.Path(arguments[0]).resolve() if arguments else HERE.parent.parent
    if not (root / "src").is_dir():
        print(f"{root}: no src/ here")
        return 2
    violations = House(root, Arrows(HERE / "arrows.txt"), HERE / "exceptions.txt").check()
    for path, line, rule, message in violations:
        print(f"{path}:{line}: [{rule}] {message}")
    print(f"house checks: {len(violations)} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
