"""The parts of the chart's values.schema.json that are specs of custom resources.

The rest of that file is written by hand; `$defs.AgentPool` and `$defs.ClusterProfilingPolicy` are
replaced by the CRDs' own schemas, closed, so that Helm refuses a misspelled field of a default
object before anything is installed. CEL rules stay behind: the API server has them.
"""

import json
from pathlib import Path
from typing import Any

from flameherd_policy.policies import ClusterProfilingPolicy
from flameherd_policy.pools import AgentPool

from tools.gen_crd import ROOT, root_schema

SCHEMA = ROOT / "charts/flameherd/values.schema.json"


def generate() -> dict[Path, str]:
    """The file, by path."""
    schema = json.loads(SCHEMA.read_text())
    for model in (AgentPool, ClusterProfilingPolicy):
        spec = root_schema(model)["properties"]["spec"]
        # Only the API server fills in defaults, and every field may be left out here.
        schema["$defs"][model.__name__] = closed(spec)
    return {SCHEMA: json.dumps(schema, indent=1, ensure_ascii=False) + "\n"}


def closed(schema: Any) -> Any:
    """The same as plain JSON Schema, without room for other fields."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {}
    for key, value in schema.items():
        if key.startswith("x-kubernetes-") or key in ("default", "format", "description"):
            continue
        named = key == "properties"  # there the keys are names of fields
        made[key] = {name: closed(v) for name, v in value.items()} if named else closed(value)
    if "properties" in made:
        made.setdefault("additionalProperties", False)
    return made
