"""Manifests against the real schemas of JobSet, TrainJob and PyTorchJob: a field they do not have is an error. The
same check passes upstream's examples and refuses them misspelt."""

import copy
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from kubernetes_cases import DEFINITIONS, SHARED, cases, definition, documents_of, probe
from structural_schema import problems, schema_of

try:
    import yaml
except ImportError:
    yaml = None

needs_yaml = unittest.skipIf(yaml is None, "needs python3-yaml")
needs_schemas = unittest.skipUnless(yaml and SHARED.is_dir(), f"needs the schemas in {SHARED}")


class Schemas:
    loaded = {}

    @classmethod
    def of(cls, document):
        kind, version = document["kind"], document["apiVersion"].split("/")[-1]
        if (kind, version) not in cls.loaded:
            cls.loaded[kind, version] = schema_of(definition(DEFINITIONS[kind]), version)
        return cls.loaded[kind, version]


def misspelt(document):
    """Every way to misspell one field of spec or below; lists by their first items."""
    def places(value, path):
        if isinstance(value, dict):
            for key in value:
                yield path + [key]
                yield from places(value[key], path + [key])
        elif isinstance(value, list) and value:
            yield from places(value[0], path + [0])

    for path in places(document["spec"], ["spec"]):
        broken = copy.deepcopy(document)
        parent = broken
        for part in path[:-1]:
            parent = parent[part]
        if isinstance(path[-1], str):
            parent[path[-1] + "x"] = parent.pop(path[-1])
            yield path, broken


@needs_yaml
class Manifests(unittest.TestCase):
    def test_documents_are_what_they_say(self):
        for what, request in cases():
            with self.subTest(what):
                script = probe("script", request)
                kinds = [document["kind"] for document in documents_of(script)]
                expected = ["Secret"] + (["ConfigMap"] if "job" in request["submission"] else [])
                self.assertEqual(kinds[:-1], expected)
                self.assertIn(kinds[-1], DEFINITIONS)
                self.assertEqual([file["secret"] for file in script["files"]], [True, False])

    def test_all_objects_are_found_by_the_label_of_the_run(self):
        for what, request in cases():
            with self.subTest(what):
                documents = documents_of(probe("script", request))
                names = {document["metadata"]["name"] for document in documents}
                runs = {document["metadata"]["labels"]["lockstep/run"] for document in documents}
                self.assertEqual(len(names), 1)
                self.assertEqual(runs, {"20261116-120000-abcdef-demo"})
                pods = list(pod_templates(documents[-1]))
                self.assertTrue(pods)
                for pod in pods:
                    self.assertEqual(pod["metadata"]["labels"]["lockstep/run"], "20261116-120000-abcdef-demo")

    def test_text_is_text_for_readers_of_yaml_1_1(self):
        hostile = ["yes", "12", "1e3", "0o17", "2026-11-16", "~", "null", "&a", "*a", "!!int 3", "a: b", "- a", "# a",
                   "a\n---\nb: c\n", "\u2028", "\x85", "\ufeff", "\t", "🚀", "", "%", "@", "`", "|", ">"]
        for kind in ("kubernetes", "kubeflow"):
            for job in hostile:
                request = {"on": kind, "launch": "image: i", "submission": {"job": job, "flags": hostile}}
                documents = documents_of(probe("script", request))
                self.assertEqual(documents[1]["data"], {"job.yaml": job})
                container = documents[2]["spec"].get("trainer") or next(pod_templates(documents[2]))["spec"]["containers"][0]
                self.assertEqual(container["command"][3:], hostile)


def pod_templates(document):
    spec = document["spec"]
    if document["kind"] == "PyTorchJob":
        yield from (replica["template"] for replica in spec["pytorchReplicaSpecs"].values())
    elif document["kind"] == "JobSet":
        yield from (job["template"]["spec"]["template"] for job in spec["replicatedJobs"])
    else:
        for patch in spec["runtimePatches"]:
            yield from (job["template"]["spec"]["template"]
                        for job in patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"])


@needs_schemas
class AgainstTheSchemas(unittest.TestCase):
    def test_manifests_have_no_problems(self):
        count = 0
        for what, request in cases():
            document = documents_of(probe("script", request))[-1]
            with self.subTest(what):
                self.assertEqual(problems(document, Schemas.of(document)), [])
            count += 1
        print(f"{count} manifests checked", file=sys.stderr)

    def test_a_misspelt_field_of_a_manifest_is_found(self):
        count = 0
        for what, request in cases():
            if "full, 4 nodes, job" not in what:
                continue
            document = documents_of(probe("script", request))[-1]
            for path, broken in misspelt(document):
                if free_form(path):
                    continue
                self.assertTrue(problems(broken, Schemas.of(document)), f"{what}: {path}")
                count += 1
        self.assertGreater(count, 200)
        print(f"{count} misspelt manifests refused", file=sys.stderr)

    def test_upstream_examples_pass_and_misspelt_ones_do_not(self):
        examples = sorted(SHARED.glob("example_*.yaml")) + [SHARED / "runtime_torch_distributed.yaml"]
        self.assertEqual(len(examples), 8)
        count = 0
        for path in examples:
            for document in yaml.safe_load_all(path.read_text()):
                if not document or document["kind"] not in DEFINITIONS:
                    continue
                schema = Schemas.of(document)
                self.assertEqual(problems(document, schema), [], path.name)
                for place, broken in misspelt(document):
                    if not free_form(place):
                        self.assertTrue(problems(broken, schema), f"{path.name}: {place}")
                        count += 1
        self.assertGreater(count, 100)
        print(f"{count} misspelt examples refused", file=sys.stderr)

    def test_a_wrong_type_is_found(self):
        request = dict(next(cases())[1])
        document = documents_of(probe("script", request))[-1]
        document["spec"]["replicatedJobs"][0]["replicas"] = "one"
        self.assertTrue(problems(document, Schemas.of(document)))


def free_form(path):
    """Maps whose keys are the user's own."""
    return path[-2] in ("labels", "annotations", "nodeSelector", "limits", "requests", "matchLabels", "pytorchReplicaSpecs")


if __name__ == "__main__":
    unittest.main(verbosity=1)
