"""Checks an object against the structural schema of a CustomResourceDefinition as an API server with strict field
validation does: a field that the schema does not name is an error, not something to drop. Needs nothing but Python;
the rules written in CEL are left out."""

import re

INT_OR_STRING = "x-kubernetes-int-or-string"
PRESERVE = "x-kubernetes-preserve-unknown-fields"
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}


def is_a(value, kind):
    if isinstance(value, bool) and kind != "boolean":
        return False
    return isinstance(value, TYPES[kind])


def problems(value, schema, path=""):
    """All of them, each as "spec.template: what is wrong"."""
    found = []
    if value is None:
        return found if schema.get("nullable") else [f"{path}: is null"]
    if schema.get(INT_OR_STRING):
        return found if is_a(value, "integer") or is_a(value, "string") else [f"{path}: is not a number or text"]
    kind = schema.get("type")
    if kind and not is_a(value, kind):
        return [f"{path}: {value!r} is not of type {kind}"]
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{path}: {value!r} is not one of {schema['enum']}")
    if isinstance(value, dict):
        found += object_problems(value, schema, path)
    elif isinstance(value, list):
        found += size_problems(len(value), schema, path, "minItems", "maxItems")
        for i, item in enumerate(value):
            found += problems(item, schema.get("items", {}), f"{path}[{i}]")
    elif isinstance(value, str):
        found += size_problems(len(value), schema, path, "minLength", "maxLength")
        if "pattern" in schema and not re.search(schema["pattern"], value):
            found.append(f"{path}: {value!r} does not match {schema['pattern']}")
    elif not isinstance(value, bool):
        found += size_problems(value, schema, path, "minimum", "maximum")
        bits = {"int32": 31, "int64": 63}.get(schema.get("format"))
        if bits and not -(2 ** bits) <= value < 2 ** bits:
            found.append(f"{path}: {value} does not fit {schema['format']}")
    return found


def object_problems(value, schema, path):
    found = [f"{path}: {key} is missing" for key in schema.get("required", []) if key not in value]
    known, others = schema.get("properties", {}), schema.get("additionalProperties")
    for key, child in value.items():
        below = f"{path}.{key}" if path else key
        if key in known:
            found += problems(child, known[key], below)
        elif isinstance(others, dict):
            found += problems(child, others, below)
        elif not others and not schema.get(PRESERVE) and (known or path):
            # An object without any schema (metadata) is checked by the server itself.
            if schema.keys() - {"type", "description", "nullable", "default"}:
                found.append(f"{below}: unknown field")
    return found


def size_problems(size, schema, path, least, most):
    if least in schema and size < schema[least]:
        return [f"{path}: {size} is below {least} {schema[least]}"]
    if most in schema and size > schema[most]:
        return [f"{path}: {size} is above {most} {schema[most]}"]
    return []


def schema_of(definition, version):
    """The schema of one served version of a CustomResourceDefinition."""
    for entry in definition["spec"]["versions"]:
        if entry["name"] == version and entry["served"]:
            return entry["schema"]["openAPIV3Schema"]
    raise KeyError(version)
