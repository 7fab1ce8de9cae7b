"""The container files keep a few rules, whether or not they can be built here; and the rules notice files that do not."""
import json
import os
import pathlib
import re
import unittest

PACKAGING = pathlib.Path(os.environ["LOCKSTEP_SOURCE_DIR"]) / "packaging"
KNOWN = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT", "CMD"}


def instructions(text):
    """(word, rest) of each instruction, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def wrong(text):
    """What breaks a rule, as sentences."""
    found, stages, last, declared = [], {}, [], set()
    for word, rest in instructions(text):
        if word not in KNOWN:
            found.append(f"{word} is not an instruction we use")
        if word == "FROM":
            name = re.search(r" AS (\S+)$", rest)
            last = []
            base = rest.split()[0]
            if base != "${BASE}" and base not in stages:
                found.append(f"FROM {base}: neither BASE nor a stage above")
            stages[name[1] if name else ""] = last
        elif word == "ARG":
            declared.add(rest.split("=")[0])
            if rest.startswith("BASE=") and not re.search(r":(?!latest)[\w.-]+$", rest):
                found.append("the base has no version")
        elif word == "COPY" and (source := re.match(r"--from=(\S+)", rest)) and source[1] not in stages:
            found.append(f"COPY --from={source[1]}: no such stage")
        if word == "RUN":
            for install in re.findall(r"apt-get (?:install|satisfy)[^&;]*", rest):
                if "-y" not in install.split() or "--no-install-recommends" not in install.split():
                    found.append("apt-get without -y --no-install-recommends")
            if re.search(r"\b(curl|wget|sudo)\b", rest):
                found.append("fetches or sudo in RUN")
        for name in re.findall(r"\$\{(\w+)\}", rest):
            if word in ("FROM", "USER") and name not in declared:
                found.append(f"{name} is not declared")
        last.append((word, rest))
    final = dict(last)
    for word in ("ENTRYPOINT", "CMD"):
        try:
            assert isinstance(json.loads(final[word]), list)
        except (KeyError, ValueError, AssertionError):
            found.append(f"{word} is not a list of words, a shell would read it")
    if final.get("ENTRYPOINT") != '["lockstep"]':
        found.append("the entry point is not lockstep")
    if final.get("USER") != "${RUN_AS}" or ("ARG", "RUN_AS=lockstep") not in last:
        found.append("the default user is not lockstep")
    for word, rest in last:
        if word == "RUN" and "apt-get update" in rest and "rm -rf" not in rest:
            found.append("apt's lists stay in the image")
    return found


class Containerfiles(unittest.TestCase):
    def test_both_files_keep_the_rules(self):
        for name in ("Containerfile", "Containerfile.cuda"):
            self.assertEqual(wrong((PACKAGING / name).read_text()), [], name)

    def test_files_that_break_a_rule_are_noticed(self):
        good = (PACKAGING / "Containerfile").read_text()
        for old, new, sentence in (('ENTRYPOINT ["lockstep"]', 'ENTRYPOINT lockstep "$@"', "a shell would read it"),
                                   ("USER ${RUN_AS}", "USER root", "default user"),
                                   ("debian:bookworm", "debian:latest", "no version"),
                                   ("debian:bookworm", "debian", "no version"),
                                   ("--from=package", "--from=built", "no such stage"),
                                   ("ARG BASE=debian:bookworm", "", "BASE is not declared"),
                                   (" -y --no-install-recommends /tmp", " /tmp", "apt-get without"),
                                   ("COPY . .", "ADD . .", "not an instruction")):
            self.assertIn(old, good)
            self.assertIn(sentence, " ".join(wrong(good.replace(old, new))), new)

    def test_the_context_leaves_out_what_is_built_and_kept(self):
        ignored = (PACKAGING.parent / ".dockerignore").read_text().split()
        for name in ("build", ".git", ".cache", "data", "runs"):
            self.assertIn(name, ignored)
        self.assertNotIn("dist", ignored)


if __name__ == "__main__":
    unittest.main(verbosity=2)
