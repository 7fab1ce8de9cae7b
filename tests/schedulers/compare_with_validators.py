"""The manifests in the eyes of others, from PyPI: kubernetes-validate for core objects (Secret, ConfigMap, pods, Jobs),
jsonschema for the custom ones by their real definitions. Upstream's examples pass; misspelt ones do not."""

import copy
import pathlib
import sys
import unittest

import jsonschema
import kubernetes_validate
import yaml

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from kubernetes_cases import DEFINITIONS, SHARED, cases, definition, documents_of, probe
from structural_schema import schema_of
from test_kubernetes_manifests import free_form, misspelt, pod_templates

VERSION = "1.35"


def strict(schema):
    """The same schema as JSON Schema, with fields it does not name refused."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: {name: strict(child) for name, child in value.items()} if key == "properties" else strict(value)
            for key, value in schema.items()}
    if made.pop("x-kubernetes-int-or-string", False):
        made = {"type": ["integer", "string"]}
    if "properties" in made and not made.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


def core_objects(documents):
    """Those a cluster has of itself, and those it makes of the others."""
    yield from documents[:-1]
    for pod in pod_templates(documents[-1]):
        if documents[-1]["kind"] == "TrainJob":
            # A patch of the runtime's own template, which has image and command.
            pod = copy.deepcopy(pod)
            trainer = documents[-1]["spec"]["trainer"]
            pod["spec"]["containers"][0].update(image=trainer["image"], command=trainer["command"], env=trainer["env"],
                                                resources=trainer.get("resourcesPerNode", {}))
        yield {"apiVersion": "v1", "kind": "Pod", **pod}
    if documents[-1]["kind"] == "JobSet":
        for job in documents[-1]["spec"]["replicatedJobs"]:
            yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, **job["template"]}


class Core(unittest.TestCase):
    def test_core_objects_are_valid(self):
        count = 0
        for what, request in cases():
            for value in core_objects(documents_of(probe("script", request))):
                with self.subTest(f"{what}: {value['kind']}"):
                    self.assertEqual(kubernetes_validate.validate(value, VERSION, strict=True), VERSION)
                count += 1
        print(f"{count} core objects valid for Kubernetes {VERSION}", file=sys.stderr)

    def test_a_misspelt_field_is_refused(self):
        what, request = [case for case in cases() if case[0] == "jobset, full, 4 nodes, job"][0]
        job = list(core_objects(documents_of(probe("script", request))))[-1]
        count = 0
        for path, broken in misspelt(job):
            if free_form(path):
                continue
            with self.assertRaises(kubernetes_validate.ValidationError, msg=str(path)):
                kubernetes_validate.validate(broken, VERSION, strict=True)
            count += 1
        print(f"{count} misspelt Jobs refused", file=sys.stderr)


@unittest.skipUnless(SHARED.is_dir(), f"needs the schemas in {SHARED}")
class Custom(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        versions = {"JobSet": "v1alpha2", "TrainJob": "v1alpha1", "PyTorchJob": "v1",
                    "ClusterTrainingRuntime": "v1alpha1"}
        cls.validators = {kind: jsonschema.Draft202012Validator(strict(schema_of(definition(name), versions[kind])))
                          for kind, name in DEFINITIONS.items()}

    def errors(self, document):
        return [error.message for error in self.validators[document["kind"]].iter_errors(document)]

    def test_custom_objects_are_valid(self):
        for what, request in cases():
            with self.subTest(what):
                self.assertEqual(self.errors(documents_of(probe("script", request))[-1]), [])

    def test_upstream_examples_are_valid_and_misspelt_ones_are_not(self):
        for path in sorted(SHARED.glob("example_*.yaml")):
            for document in yaml.safe_load_all(path.read_text()):
                if not document or document["kind"] not in DEFINITIONS:
                    continue
                self.assertEqual(self.errors(document), [], path.name)
                for place, broken in misspelt(document):
                    if not free_form(place):
                        self.assertTrue(self.errors(broken), f"{path.name}: {place}")


if __name__ == "__main__":
    unittest.main(verbosity=1)
