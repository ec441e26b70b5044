"""Print one line of JSON, {"version", "gpu", "include", "lib"}, for the torch of the running interpreter.

"gpu" is the backend of that torch's own GPU support: "cuda", "hip" or "".

Used by setup.py and CMake. Reads torch's files without importing it, which would take seconds.
Prints `null` when there is no torch.
"""

import importlib.util
import json
import runpy
from pathlib import Path

spec = importlib.util.find_spec("torch")
if spec is None or spec.origin is None:
    print("null")
else:
    root = Path(spec.origin).parent
    facts = runpy.run_path(str(root / "version.py"))
    torch = {
        "version": str(facts["__version__"]),
        "gpu": "hip" if facts.get("hip") else ("cuda" if facts.get("cuda") else ""),
        "include": str(root / "include"),
        "lib": str(root / "lib"),
    }
    print(json.dumps(torch))
