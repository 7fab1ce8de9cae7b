"""The headers that plugins include, comments and spaces left out, are those that the interface number was given for.

After a change that plugins notice, raise LOCKSTEP_PLUGIN_INTERFACE (lockstep/base/plugin_tag.h); then, or where they do not
notice it: check_interface.py --accept
"""
import os
import pathlib
import re
import sys
import zlib

SOURCE = pathlib.Path(os.environ.get("LOCKSTEP_SOURCE_DIR", pathlib.Path(__file__).parents[2]))
KEPT = pathlib.Path(__file__).parent / "interface.txt"
HOST_SIDE = {"library.h", "option_map.h"}


def bare(text):
    """Without comments and spaces."""
    return re.sub(r"\s+", "", re.sub(r"//.*", "", text))


def fingerprint(files):
    return f"{zlib.crc32(''.join(bare(text) for text in files).encode()):08x}"


def headers():
    folder = SOURCE / "lockstep" / "plugin"
    return [path.read_text() for path in sorted(folder.glob("*.h")) if path.name not in HOST_SIDE]


def number():
    text = (SOURCE / "lockstep" / "base" / "plugin_tag.h").read_text()
    return re.search(r"#define LOCKSTEP_PLUGIN_INTERFACE (\d+)", text)[1]


def main():
    now = f"{number()} {fingerprint(headers())}"
    if sys.argv[1:] == ["--accept"]:
        KEPT.write_text(now + "\n")
        return
    # The check itself: a comment changes nothing, a word does.
    assert fingerprint(["int a;  // one"]) == fingerprint(["int a; // two\n"])
    assert fingerprint(["int a;"]) != fingerprint(["long a;"])
    kept = KEPT.read_text().strip()
    if now != kept:
        sys.exit(f"the headers of plugins are {now}, and {kept} was accepted: is LOCKSTEP_PLUGIN_INTERFACE to be raised? "
                 f"Then, or if not: {sys.argv[0]} --accept")
    print(f"interface {kept}")


main()
